// One word in several contexts: the examples, and the word's position in each text.
import { json, look, useAnswer } from "../../core/fetching.js";
import { html } from "../../core/html.js";
import { select, useSelection } from "../../core/state.js";
import { Field } from "../../parts/field.js";
import { DelayedText } from "../../parts/shared_bar.js";
import { lensBody } from "./layers.js";
import { OF_WAY } from "./scene.js";

const MOST_TEXTS = OF_WAY.length; // a colour each

/** Texts by a word that they contain, after its context: a decoder reads only earlier words. */
const EXAMPLES = {
  mole: ["Under the garden lives a small animal, the mole", "In chemistry the number of atoms is counted by the mole",
    "The doctor looked at the skin and cut out the mole"],
  king: ["In Scotland the crown was given to the king", "On the board of chess the queen stands beside the king",
    "In Shakespeare the man who murdered his predecessor is king"],
  tower: ["They built a tower", "In Paris they saw the Eiffel tower", "She bought a miniature Eiffel tower"],
  Harry: ["The young wizards of Hogwarts, Hermione and Harry", "The Queen, William and the Duke of Sussex, Harry"],
  car: ["They drove the car", "They washed the car", "They crashed the car"],
};

export function contextsOf(selection) {
  const word = selection.motion_word;
  const own = selection.motion_texts.split("\n").map((line) => line.trim()).filter(Boolean);
  return { word, texts: (own.length ? own : (EXAMPLES[word] ?? [])).slice(0, MOST_TEXTS) };
}

/** The last position of the word in the text; null if the text does not contain it. */
function positionOf(text, word, offsets) {
  const at = text.toLowerCase().lastIndexOf(word.toLowerCase());
  if (at < 0 || word === "") return null;
  const end = Array.from(text.slice(0, at + word.length)).length; // the server counts code points, not UTF-16 units
  const position = offsets.findIndex(([from, to]) => from < end && to >= end);
  return position < 0 ? null : position;
}

async function askAll(route, { word, texts, reads, ...body }, options) {
  return Promise.all(texts.map(async (text) => {
    const { offsets } = await json("tokenize", { prompt: text, return_offsets: true }, options);
    const position = positionOf(text, word, offsets);
    if (position === null) throw new Error(`‘${word}’ is not in the text ‘${text}’.`);
    const [[entry], lens] = await Promise.all([look(route, { input: text, ...body, query_positions: position }, options),
      reads && look("v1/lens", lensBody({ input: text }, position), options)]);
    return { ...entry, lens: lens?.[0] };
  }));
}

export const useContexts = (body) => useAnswer(askAll, body === null ? null : "v1/contributions", body);

export function ContextFields() {
  const selection = useSelection();
  const { word, texts } = contextsOf(selection);
  const example = (event) => event.target.value && select({ motion_word: event.target.value, motion_texts: "" },
    { remember: true });
  return html`<div class="motion-contexts">
    <div class="toolbar">
      <label>Word <${Field} value=${word} size="10" onTake=${(value) => select({ motion_word: value.trim(),
        motion_texts: texts.join("\n") })} /></label>
      <label>Examples <select value=${selection.motion_texts ? "" : word} onChange=${example}>
        <option value="">your own</option>
        ${Object.keys(EXAMPLES).map((name) => html`<option value=${name}>${name}</option>`)}</select></label>
    </div>
    <${DelayedText} label=${`Texts with the word, one a line, ${MOST_TEXTS} at most`} rows=${4} keepsLines=${true}
      value=${texts.join("\n")} onText=${(value) => select({ motion_texts: value })} />
  </div>`;
}
