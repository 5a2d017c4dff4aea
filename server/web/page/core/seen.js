// Which side of a comparison a view shows, and the text of that side.

/** Views that are independent of changes: they use their own texts, weights, or the server's counters. */
export const UNCHANGED_VIEWS = new Set(["embeddings", "patching", "weights", "server"]);

// Views that can show the difference of two answers; others show the changed model's answer instead.
const WITH_DIFFERENCE = new Set(["attention", "why", "moves", "lens", "next", "heads", "flow"]);

export const canSubtract = ({ view, moves_as: as }) => WITH_DIFFERENCE.has(view) && (view !== "moves" || as === "amounts");

/** Whether there are two sides to compare: a list of changes, or a second text. */
export const isCompared = ({ view, change, change_text: second }) =>
  !UNCHANGED_VIEWS.has(view) && (change !== "" || second !== "");

/** Whether the view shows the second text; the view's edits then change the second text. */
export const showsSecond = (selection) => {
  const { view, change_show: show, change_text: second } = selection;
  return second !== "" && !UNCHANGED_VIEWS.has(view) && (show === "after" || (show === "difference" && !canSubtract(selection)));
};

/** The selection for views: its text is the displayed one, and its side is one that the view supports. */
export function seenOf(selection) {
  const seesSecond = showsSecond(selection);
  const isUnable = selection.change_show === "difference" && !canSubtract(selection);
  if (!seesSecond && !isUnable) return selection;
  return {
    ...selection,
    ...(seesSecond ? { text: selection.change_text } : {}),
    ...(isUnable ? { change_show: "after" } : {}),
  };
}
