// Settings of a conversation: system prompt, sampling with the model's own defaults, tools, the form of the answer.
import { html, useState } from "../../core/html.js";
import { useCapabilities } from "../../core/model.js";
import { SHARED } from "../../core/sampling.js";
import { select } from "../../core/state.js";
import { Field } from "../../parts/field.js";
import { update } from "./history.js";
import { NEUTRAL } from "./requests.js";

// [name of the request's field, label, low, high, explanation, what an empty field means if not NEUTRAL]
const NUMBERS = [
  ["temperature", "Temperature", 0, 100, "0 is greedy; higher values are more varied"],
  ["top_p", "Top-p", 1e-9, 1, "Keep the likeliest tokens with this total probability"],
  ["top_k", "Top-k", -1, 2 ** 31 - 1, "Keep only the k likeliest tokens; 0 keeps all"],
  ["min_p", "Min-p", 0, 1, "Remove tokens below this fraction of the largest probability"],
  ["repetition_penalty", "Repetition penalty", 1e-9, 100, "Above 1 makes repeated tokens less likely"],
  ["presence_penalty", "Presence penalty", -2, 2, "Above 0 favours tokens that did not occur yet"],
  ["frequency_penalty", "Frequency penalty", -2, 2, "Above 0 makes frequent tokens less likely"],
  ["max_tokens", "Most tokens", 1, 2 ** 31 - 1, "Length of an answer at most", "rest of the context"],
  ["seed", "Seed", -(2 ** 53) + 1, 2 ** 53 - 1, "The same seed gives the same answer", "random"],
];
const WHOLE = new Set(["top_k", "max_tokens", "seed"]);
const STOP = ["stop", "Stop texts", "one a line: the answer ends before it"];
const FORM = [
  ["tools", "Tools", "JSON: a list of functions that the model may call"],
  ["schema", "Form of the answer", "a JSON schema: the answer is JSON that fits it"],
];
const EFFORTS = ["none", "low", "medium", "high"];

export function Settings({ chat, shared }) {
  const { default_sampling_params: defaults = {} } = useCapabilities();
  const [refused, setRefused] = useState("");
  const isText = chat.kind === "text";
  const settings = { ...chat.settings, ...shared };
  const edit = (change) => update(chat.id, change, { isTouched: false });
  const set = (name, value) => (isText && SHARED[name] ? select({ [SHARED[name]]: value }) : edit((now) => {
    const { [name]: _, ...others } = now.settings;
    return { ...now, settings: value === null || value === "" ? others : { ...others, [name]: value } };
  }));
  const take = ([name, label, low, high]) => (text) => {
    const value = Number(text);
    const isWhole = WHOLE.has(name);
    const isNumber = value >= low && value <= high && (!isWhole || Number.isInteger(value));
    const isGood = text.trim() === "" || isNumber;
    setRefused(isGood ? "" : `${label} must be a ${isWhole ? "whole " : ""}number from ${low} to ${high} (got ${text}).`);
    if (isGood) set(name, text.trim() === "" ? null : value);
  };
  return html`<div class="chat-settings">
    ${!isText && html`<label>System prompt<textarea rows="4" value=${chat.system} placeholder="none: the template may have its own"
      onInput=${({ target }) => edit((now) => ({ ...now, system: target.value }))}></textarea></label>`}
    ${refused && html`<p class="refused" role="alert">${refused}</p>`}
    <div class="setting-numbers">${NUMBERS.map((each) => {
      const [name, label, , , hint, other] = each;
      return html`<label title=${hint}>${label}<${Field} inputmode="decimal" value=${settings[name] ?? ""}
        placeholder=${String(defaults[name] ?? other ?? NEUTRAL[name])} onTake=${take(each)} /></label>`;
    })}
      ${!isText && html`<label title="For models that reason: how long">Reasoning<select value=${settings.reasoning_effort ?? ""}
        onChange=${({ target }) => set("reasoning_effort", target.value)}><option value="">model's own</option>
        ${EFFORTS.map((effort) => html`<option value=${effort}>${effort}</option>`)}</select></label>`}
    </div>
    <p class="hint">Grey values are the model's own; an empty field keeps them.</p>
    ${[STOP, ...(isText ? [] : FORM)].map(([name, label, hint]) => html`<label>${label}<textarea rows="2" spellcheck=${false}
      placeholder=${hint} value=${settings[name] ?? ""} onInput=${({ target }) => set(name, target.value)}></textarea></label>`)}
    <button onClick=${() => {
      setRefused("");
      if (isText) select(Object.fromEntries(Object.values(SHARED).map((name) => [name, null])));
      edit((now) => ({ ...now, settings: {} }));
    }}>Use the model's own settings</button>
  </div>`;
}
