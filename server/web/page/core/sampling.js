// Sampling options of continued texts, in Chat and in Attention: they are part of the address.

export const SHARED = {
  temperature: "write_temperature", top_p: "write_top_p", top_k: "write_top_k", seed: "write_seed", max_tokens: "write_max_tokens",
};

/** Without the fields that keep the model's own value. */
export const samplingOf = (selection) =>
  Object.fromEntries(Object.entries(SHARED).map(([name, field]) => [name, selection[field]]).filter(([, value]) => value !== null));
