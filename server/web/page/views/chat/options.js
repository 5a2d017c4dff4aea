// Generation options of a continued text.
import { html, useMemo, useState } from "../../core/html.js";
import { inputOf, useCapabilities } from "../../core/model.js";
import { samplingOf, seedOf } from "../../core/sampling.js";
import { select, useSelection } from "../../core/state.js";
import { Field } from "../../parts/field.js";
import { Temperature, TopK, TopP } from "../../parts/slider.js";

/** The options for story.js; seed is null if the user gives none. */
export function useOptions() {
  const selection = useSelection();
  const capabilities = useCapabilities();
  return useMemo(() => {
    return {
      sampling: samplingOf(selection),
      maxTokens: selection.write_max_tokens,
      maxModelLen: capabilities.max_model_len,
      seed: seedOf(selection),
      isGreedy: selection.write_temperature === 0 || selection.write_top_k === 1,
      isPair: capabilities.kind === "encoder-decoder",
      interventions: inputOf(selection, capabilities).interventions ?? [],
    };
  }, [selection, capabilities]);
}

export function Options() {
  const selection = useSelection();
  const [refused, setRefused] = useState("");
  const takeCount = (text) => {
    const isCount = /^[1-9]\d{0,8}$/.test(text);
    setRefused(isCount ? "" : `The number of tokens must be a whole number from 1 on; it stays ${selection.write_max_tokens}.`);
    if (isCount) select({ write_max_tokens: Number(text) });
  };
  const takeSeed = (text) => {
    const isSeed = text === "" || seedOf({ write_seed: text }) !== null;
    setRefused(isSeed ? "" : `A seed is a whole number; it stays ${selection.write_seed || "random"}.`);
    if (isSeed) select({ write_seed: text });
  };
  return html`<div class="toolbar sliders">
    <${Temperature} value=${selection.write_temperature} high=${2} onPick=${(value) => select({ write_temperature: value })} />
    <${TopP} value=${selection.write_top_p} onPick=${(value) => select({ write_top_p: value })} />
    <${TopK} value=${selection.write_top_k} onPick=${(value) => select({ write_top_k: value })} />
    <label class="small-field" title="How many tokens are written at most">tokens <${Field} type="number" min="1"
      value=${selection.write_max_tokens} onTake=${takeCount} /></label>
    <label class="small-field" title="The same seed writes the same text">seed <${Field} type="number"
      value=${selection.write_seed} placeholder="random" onTake=${takeSeed} /></label>
    ${refused && html`<p class="refused" role="alert">${refused}</p>`}
  </div>`;
}
