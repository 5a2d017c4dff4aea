// Sampling options of continued texts, in Chat and in Attention.

/** The sampler's fields of a request, from the shared state. */
export function samplingOf({ write_temperature: temperature, write_top_p, write_top_k }) {
  return { temperature, top_p: write_top_p, top_k: write_top_k };
}

/** The typed seed, or null for a random one. */
export const seedOf = ({ write_seed: typed }) => (/^-?\d{1,15}$/.test(typed) ? Number(typed) : null);
