// Which side of a comparison a view shows, and the text of that side.

/** Views that are independent of changes: they use their own texts, weights, or the server's counters. */
export const UNCHANGED_VIEWS = new Set(["embeddings", "patching", "weights", "server"]);

// Views that can show the difference of two answers; others show the changed model's answer instead.
const WITH_DIFFERENCE = new Set(["attention", "why", "moves", "lens", "next", "heads", "flow"]);

export const canSubtract = ({ view, moves_as: as }) => WITH_DIFFERENCE.has(view) && (view !== "moves" || as === "amounts");

const BESIDE = new Set(["attention", "next"]);

export const canShowBoth = (view) => BESIDE.has(view);

/** A second text has no effect then. */
export const comparesModels = ({ view, change_model: model }) => model !== "" && canShowBoth(view);

export const isCompared = (selection) => comparesModels(selection) ||
  (!UNCHANGED_VIEWS.has(selection.view) && (selection.change !== "" || selection.change_text !== ""));

function sideOf(selection) {
  const { view, change_show: show } = selection;
  const isAble = { difference: canSubtract(selection), both: canShowBoth(view) && isCompared(selection) }[show] ?? true;
  return isAble ? show : "after";
}

/** Then the view's edits change the second text. */
export const showsSecond = (selection) => selection.change_text !== "" && !UNCHANGED_VIEWS.has(selection.view) &&
  !comparesModels(selection) && sideOf(selection) === "after";

export const otherModel = (selection) =>
  (comparesModels(selection) && /after|difference/.test(selection.change_show) ? selection.change_model : "");

/** Its text is the displayed one, and its side is one that the view supports. */
export function seenOf(selection) {
  const side = sideOf(selection);
  const [seesSecond, isOfModels] = [showsSecond(selection), comparesModels(selection)];
  if (!seesSecond && !isOfModels && side === selection.change_show) return selection;
  const text = seesSecond ? selection.change_text : selection.text;
  return { ...selection, text, change_text: isOfModels ? "" : selection.change_text, change_show: side };
}
