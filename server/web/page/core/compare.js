// Comparison of two answers, for two models or texts: the request of the other side, and the difference.
import { canShowBoth, comparesModels, isCompared } from "./seen.js";
import { state, useSelection } from "./state.js";

/** Property of a request body: the fields of the other side. As a symbol, copies keep it and JSON omits it. */
export const OTHER = Symbol("other side");

/** other: null without a difference. */
export function sidesOfRequest(body) {
  if (!body?.[OTHER]) return { own: body, other: null };
  const { [OTHER]: given, ...own } = body;
  const { input, decoder_input: decoder, interventions, model, ...rest } = own;
  return { own, other: { ...given, ...rest } };
}

/** "" without a difference. */
export function useDifferenceName(before = "") {
  const selection = useSelection();
  if (!isCompared(selection) || selection.change_show !== "difference") return "";
  const [first, second] = sideNames(selection);
  return `${before}${second} − ${first}`;
}

/** Names of the two sides; the first one is subtracted. */
export function sideNames(selection) {
  if (comparesModels(selection)) return [selection.model || "this model", selection.change_model];
  return selection.change_text ? ["text A", "text B"] : ["before", "after"];
}

class NoDifference extends Error {
  title = "No difference";
  status = 422;
}

/**
 * The entries of `after` with their arrays minus the arrays of `before`. Different tokens at a position are shown as both
 * names, if both sides have as many tokens. Ids are not subtracted.
 */
export function difference(after, before) {
  return after.map((entry, i) => {
    const other = before[i];
    const arrays = {};
    const names = {};
    for (const name of Object.keys(entry.arrays)) {
      const [array, taken] = ofSameNames([entry, other], name, names);
      if (String(array.shape) !== String(taken?.shape)) throw new NoDifference(whyNone(entry.tokens, other.tokens));
      const minus = (value, place) => value - taken.data[place];
      arrays[name] = name === "ids" ? array : { ...array, data: Float32Array.from(array.data, minus) };
    }
    return { ...entry, ...names, arrays, tokens: bothNames(entry.tokens, other.tokens), before: other, after: entry, isDifference: true };
  });
}

const NAMES = { component: "component_names", addition: "addition_names" }; // arrays with named components

/** If the components have names, both arrays have all names; a missing component is 0. */
function ofSameNames(entries, name, names) {
  const arrays = entries.map((entry) => entry.arrays[name]);
  const axis = arrays[0].axes?.find((each) => each in NAMES);
  const own = entries.map((entry) => entry[NAMES[axis]]);
  if (!axis || !arrays[1] || String(own[0]) === String(own[1])) return arrays;
  const all = [...new Set(own.flat())];
  names[NAMES[axis]] = all;
  return arrays.map((array, i) => {
    const size = array.data.length / own[i].length;
    const data = new Float32Array(all.length * size);
    own[i].forEach((part, from) => data.set(array.data.subarray(from * size, (from + 1) * size), all.indexOf(part) * size));
    return { ...array, data, shape: array.shape.map((length, at) => (array.axes[at] === axis ? all.length : length)) };
  });
}

const whyNone = (after, before) => after?.length === before?.length
  ? "The two answers are of different shapes: number by number they have no difference."
  : `The texts have ${before.length} and ${after.length} tokens and cannot be subtracted. Show ${
    canShowBoth(state.value.view) ? "A and B side by side" : "text A or text B"}.`;

function bothNames(after, before) {
  if (after?.length !== before?.length) return after;
  return after?.map((token, i) => (token === before[i] ? token : `${before[i]}|${token.trim()}`));
}
