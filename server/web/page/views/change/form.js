// The form for one change: point, place and operation.
import { OPS, PLACES } from "../../core/changes.js";
import { html, useState } from "../../core/html.js";
import { shownToken, useHead } from "../../core/model.js";
import { indices } from "../../core/numbers.js";
import { useSequences } from "../../core/sequences.js";
import { select, useSelection } from "../../core/state.js";
import { Field } from "../../parts/field.js";
import { Select } from "../../parts/choices.js";
import { DelayedText } from "../../parts/shared_bar.js";
import { addChange } from "./edits.js";

const WHAT = { head: "a head", mlp: "an MLP", stream: "the residual stream", softmax: "attention temperature" };
const ABOUT = {
  head: "The output of the head to the word's vector.",
  mlp: "The layer's MLP output, added to each word's vector.",
  stream: "The word's whole vector after the layer.",
  softmax: "The divisor of the scores before the softmax: 0 puts all weight on the largest score, large values make the weights equal.",
};
const MOST_NAMED = 200; // positions in the list

export function Form({ changes, isFull }) {
  const selection = useSelection();
  const [place, setPlace] = useState("head");
  const [wanted, setOp] = useState("zero");
  const [everywhere, setEverywhere] = useState({ layer: false, head: false });
  const [position, setPosition] = useState(null);
  const [values, setValues] = useState({});
  const { part, layer, head, numLayers, numHeads } = useHead({ ofAnyBlock: place === "mlp" || place === "stream" });
  const { ops, hasHead, hasPosition } = PLACES[place];
  const op = ops.includes(wanted) ? wanted : ops[0];
  const { value: usual, needsSource } = OPS[op];
  const value = usual === undefined ? null : (values[op] ?? usual);
  const lacksSource = needsSource && selection.change_source === "";
  const add = (event) => {
    event.preventDefault();
    const own = part === "cross" && !hasHead ? "decoder" : part;
    addChange(changes, {
      op, place, part: selection.part === "" ? "" : own, layer: everywhere.layer ? "all" : layer,
      head: hasHead ? (everywhere.head ? "all" : head) : null, position: hasPosition ? position : null, value,
    }, selection.change_show);
  };
  const pick = (field) => (picked) => {
    setEverywhere({ ...everywhere, [field]: picked === "all" });
    if (picked !== "all") select({ [field]: Number(picked) });
  };
  return html`<form class="change-form" onSubmit=${add}>
    <${Select} label="Change" value=${place} onPick=${setPlace} options=${Object.entries(WHAT)} />
    <${Select} label="in layer" value=${everywhere.layer ? "all" : layer} onPick=${pick("layer")}
      options=${upTo(numLayers)} />
    ${hasHead && html`<${Select} label="head" value=${everywhere.head ? "all" : head} onPick=${pick("head")}
      options=${upTo(numHeads)} />`}
    ${hasPosition && html`<${Position} part=${part} value=${position} onPick=${setPosition} />`}
    ${ops.length > 1 && html`<${Select} label="how" value=${op} onPick=${setOp} options=${ops.map((name) => [name, OPS[name].title])} />`}
    ${value !== null && html`<label>${op === "steer" ? "times" : "by"} <${Field} inputmode="decimal" size="6" value=${value}
      onTake=${(text) => Number.isFinite(Number(text)) && text.trim() !== "" &&
        setValues({ ...values, [op]: op === "temperature" ? Math.max(0, Number(text)) : Number(text) })} /></label>`}
    <${Source} selection=${selection} ops=${[op, ...changes.map((change) => change.op)]} />
    <p class="hint">${ABOUT[place]}</p>
    <button type="submit" disabled=${isFull || lacksSource}>Add this change</button>
    ${lacksSource && html`<span class="hint">Write the second text first.</span>`}
  </form>`;
}

const upTo = (count) => [...indices(count).map((name, i) => [i, name]), ["all", "all"]];

function Position({ part, value, onPick }) {
  const { query, key } = useSelection();
  const tokens = useSequences()[part === "encoder" ? "encoder" : "decoder"];
  const isLong = tokens.length > MOST_NAMED;
  const places = isLong ? [...new Set([query, key, tokens.length - 1])] : tokens.map((_, i) => i);
  const name = (place) => `${place} ${shownToken(tokens.at(place) ?? "")}`;
  const options = [["", "all positions"], ...places.map((place) => [place, name(place)])];
  return html`<${Select} label="at" value=${value ?? ""} options=${options}
    onPick=${(picked) => onPick(picked === "" ? null : Number(picked))} />`;
}

function Source({ selection, ops }) {
  if (!ops.some((op) => OPS[op].needsSource)) return null;
  return html`<div class="change-source">
    <${DelayedText} label="Second text" value=${selection.change_source} rows=${1}
      onText=${(change_source) => select({ change_source })} />
    ${ops.includes("patch") && html`<p class="hint">A patch takes numbers from the same positions. For all positions, both
      texts need the same number of tokens.</p>`}
    ${ops.includes("steer") && html`<${DelayedText} label="Steer away from (empty: the text above)" value=${selection.change_away}
        rows=${1} onText=${(change_away) => select({ change_away })} />
      <p class="hint">The direction from this text to the second one, of their last tokens' vectors after that layer, is added
        times the strength.</p>`}
  </div>`;
}
