// Export of a view: saving it as a file, and the header of such a file or of a frame.
import { ask, connection, root } from "../core/api.js";
import { film } from "../core/film.js";
import { classes, html } from "../core/html.js";
import { useCapabilities } from "../core/model.js";
import { saved } from "../core/place.js";
import { saveBlob, sizeOf } from "../core/save.js";
import { contentOf } from "../core/saved.js";
import { address, hashNow, state, useSelection } from "../core/state.js";
import { useStore } from "../core/store.js";
import { copy, Menu } from "./tools.js";

const [PLACE, EMPTY] = ['id="saved">', "null"];

async function fileOf(view) {
  film.value?.pause(); // the address names the frame at which it stops
  const response = await ask(`web/saved/${view.id}.html`, null, { accept: "text/html", isKept: false });
  const page = await response.text();
  // in the text of a script, only < could begin a tag
  const content = JSON.stringify(await contentOf(root, hashNow())).replaceAll("<", "\\u003c");
  return new Blob([page.replace(`${PLACE}${EMPTY}`, () => `${PLACE}${content}`)], { type: "text/html" });
}

async function save(view) {
  const file = await fileOf(view);
  saveBlob(file, `lightwell-${view.id}.html`);
  return `Saved, ${sizeOf(file.size)}`;
}

/** The card's title is the element with data-title, or the first card's. */
async function saveCard(view, capabilities) {
  film.value?.pause();
  const { text } = state.value;
  const turn = [...document.querySelectorAll("main .turn :is(.bubble, .markdown)")].at(-1)?.innerText;
  const title = (document.querySelector("main [data-title]") ?? document.querySelector("main h2"))?.cloneNode(true);
  title?.querySelectorAll("sub").forEach((position) => position.remove());
  const { cardOf } = await import("./card.js");
  const card = await cardOf(title?.textContent.trim() || view.title, turn ?? (text ? `“${text}”` : view.about),
    `Lightwell · ${capabilities.model} · ${view.title}`);
  saveBlob(card, `lightwell-${view.id}.png`);
}

function frameOf(view) {
  const place = new URL(address());
  place.searchParams.set("embed", "1");
  const source = place.href.replaceAll("&", "&amp;").replaceAll('"', "&quot;");
  return `<iframe src="${source}" title="Lightwell: ${view.title}" width="100%" height="700"></iframe>`;
}

export function TakeAway({ view }) {
  const capabilities = useCapabilities();
  const moving = useStore(film);
  return html`<${Menu} label="Share…" title="Take this view away" items=${[
    { label: "this view (HTML)", run: () => save(view) },
    view.id !== "home" && { label: "card (PNG)", run: () => saveCard(view, capabilities) },
    moving?.record && { label: `clip of ${moving.seconds} s`, run: moving.record },
    { label: "link to this view", run: () => (film.value?.pause(), copy(address())) },
    { label: "frame for a web page", run: () => copy(frameOf(view)) },
  ]} />`;
}

function OpenInLightwell({ isQuiet = false }) {
  useSelection(); // the address follows it
  return html`<a class=${classes(isQuiet && "quiet button")} href=${address()} target="_blank" rel="noopener">Open in Lightwell</a>`;
}

export function SavedHeader({ children }) {
  const capabilities = useCapabilities();
  const day = new Date(saved.at).toLocaleDateString(undefined, { dateStyle: "long" });
  return html`<header class="top taken">
    <span class="brand"><span class="mark" aria-hidden="true"></span>Lightwell</span>
    ${capabilities && html`<span class="model"><b>${capabilities.model}</b></span>`}
    <span class="hint">This file contains only the views that were seen before it was saved, on ${day}.</span>
    <span class="grow"></span>
    <${OpenInLightwell} isQuiet />
    ${children}
  </header>`;
}

export function FrameHeader() {
  const link = useStore(connection);
  return html`<header class="frame-head">
    ${link === "key" && html`<p role="alert">Nothing is shown here: this server needs an API key, and a page
      in a frame accepts none, because the page around it could imitate it.</p>`}
    <${OpenInLightwell} />
  </header>`;
}
