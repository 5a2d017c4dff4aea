// How the model's next token is drawn, wherever the page lets it write: the options of the view Write.

/** The sampler's fields of a request, from the shared state. */
export function samplingOf({ write_temperature: temperature, write_top_p, write_top_k }) {
  return { temperature, top_p: write_top_p, top_k: write_top_k };
}

/** The seed that was typed, or null where it is left to chance. */
export const seedOf = ({ write_seed: typed }) => (/^-?\d{1,15}$/.test(typed) ? Number(typed) : null);
