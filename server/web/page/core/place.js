// Where the page runs: in its own tab, in a frame of another page, or in a saved file; and whether its server has several models.

/** Content of a saved file, {root, hash, at, answers, states}; null on a page from a server. */
export const saved = JSON.parse(document.getElementById("saved")?.textContent ?? "null");

/** Whether only the view is shown, for a frame of another page: ?embed=1. */
export const isEmbedded = !saved && new URLSearchParams(location.search).get("embed") === "1";

/** Whether the page is in a frame of another page: a framed page has no key and no field for it. */
export const isFramed = isEmbedded || (!saved && window.top !== window);

/** Whether the server offered several models when it sent the page. */
export const hasModels = "models" in document.getElementById("app").dataset;
