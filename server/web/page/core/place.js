// Where the page stands: in a tab of its own, in a frame of another page, or in a file that somebody saved.

/** What a saved file shows, {root, hash, at, answers, states}; null on a page that a server sent. */
export const saved = JSON.parse(document.getElementById("saved")?.textContent ?? "null");

/** Whether only the view is wanted, for a frame of another page: ?embed=1. */
export const isEmbedded = !saved && new URLSearchParams(location.search).get("embed") === "1";

/** Whether another page holds this one: such a page neither asks for a key nor holds one. */
export const isFramed = isEmbedded || (!saved && window.top !== window);
