// Where the page runs: in its own tab, in a frame of another page, or in a saved file; and whether its server has several models.

/** Content of a saved file, or null. */
export const saved = JSON.parse(document.getElementById("saved")?.textContent ?? "null");

/** A frame of another page: only the view is shown. */
export const isEmbedded = !saved && new URLSearchParams(location.search).get("embed") === "1";

/** A framed page has no key and no field for it. */
export const isFramed = isEmbedded || (!saved && window.top !== window);

export const hasModels = "models" in document.getElementById("app").dataset;
