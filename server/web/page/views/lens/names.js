// Names of the states of the residual stream: 0 is the embedding, i the stream after block i - 1.

export function stateName(state, count) {
  if (state === 0) return "embed";
  return state === count - 1 ? `${state - 1} (last)` : String(state - 1);
}

export function stateTitle(state, count) {
  if (state === 0) return "the embedding";
  return `the residual stream after layer ${state - 1}${state === count - 1 ? ", the last: the model's own answer" : ""}`;
}
