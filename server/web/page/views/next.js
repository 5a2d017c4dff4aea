// The probability of every next token, at any temperature, before and after truncation, updated as sliders move.
import { OTHER, sidesOfRequest } from "../core/compare.js";
import { html, useState } from "../core/html.js";
import { useCapabilities, useInput } from "../core/model.js";
import { otherModel } from "../core/seen.js";
import { select, useSelection } from "../core/state.js";
import { textOf } from "../core/texts.js";
import { Answer, Problem } from "../parts/problem.js";
import { Slider, Temperature, TopK, TopP } from "../parts/slider.js";
import { Term } from "../parts/term.js";
import { Card } from "../parts/tools.js";
import { Curve } from "./next/curve.js";
import { Difference } from "./next/difference.js";
import { Find, useFound } from "./next/find.js";
import { Likeliest, useAct } from "./next/likeliest.js";
import { Numbers, Sentence } from "./next/numbers.js";
import { OwnLogits } from "./next/own_logits.js";
import { filtersOf, useRow } from "./next/row.js";
import { TextScore } from "./next/text_score.js";

export function View() {
  const selection = useSelection();
  const { text, next_logits_first: ownFirst } = selection;
  const capabilities = useCapabilities();
  const { kind } = capabilities;
  const act = useAct();
  const options = {
    temperature: selection.next_temperature,
    topK: selection.next_top_k,
    topP: selection.next_top_p,
    minP: selection.next_min_p,
  };
  const { own, other } = sidesOfRequest(useInput());
  const [shown, first] = [useRow(options, own), useRow(options, other)];
  const { answer, row, drawn } = shown;
  const body = asAsked({ ...shown.body, ...(other ? { [OTHER]: other } : {}) }, options);
  if (text === "") {
    return html`<p class="lack">Write a text above: the model says what could
      ${kind === "encoder" ? " stand in place of" : " follow"} each of its tokens.</p>`;
  }
  return html`<div class="next">
    ${ownFirst && html`<${OwnLogits} />`}
    <p>The last layer's vector at the chosen (blue) token becomes one number for every token of the vocabulary, its${" "}
      <${Term} of="logit" />; <${Term} of="softmax" /> makes them probabilities. Move the sliders, such as the${" "}
      <${Term} of="temperature" />, to see the effect of a sampler
      on them; click a token to ${act}.</p>
    ${other && html`<${Problem} error=${first.answer.error} retry=${first.answer.retry} />`}
    <${Answer} answer=${answer} minHeight="70rem">${() => !other ? html`<${Row} row=${row} drawn=${drawn} body=${body} />` : first.drawn &&
      html`<${Difference} before=${first} after=${shown} body=${body}><${Controls} selection=${selection} /><//>`}<//>
    ${kind === "decoder" && html`<${TextScore} />`}
    ${!ownFirst && html`<${OwnLogits} />`}
  </div>`;
}

function Row({ row, drawn, body }) {
  const selection = useSelection();
  const found = useFound(row);
  const { force, problem, note } = useForce(row);
  return html`<div class="next">
    <${Card} title="The distribution" copy=${{ route: "v1/next", body }}>
      <${Sentence} row=${row} drawn=${drawn} />
      <${Controls} selection=${selection} />
      <${Numbers} row=${row} drawn=${drawn} />
    <//>
    <${Problem} error=${problem} isAction />
    ${note && html`<p class="hint" role="status">${note}</p>`}
    <div class="columns">
      <${Likeliest} row=${row} drawn=${drawn} found=${found} onPick=${force} />
      <div class="next-right">
        <${Curve} row=${row} drawn=${drawn} found=${found} />
        <${Find} row=${row} drawn=${drawn} onPick=${force} />
      </div>
    </div>
  </div>`;
}

const asAsked = (body, options) => ({ ...body, temperatures: [options.temperature], ...filtersOf(options) });

function Controls({ selection }) {
  const isChanged = selection.next_temperature !== 1 || selection.next_top_k > 0 || selection.next_top_p < 1
    || selection.next_min_p > 0;
  return html`<div class="toolbar sliders">
    <${Temperature} value=${selection.next_temperature} high=${3} onPick=${(value) => select({ next_temperature: value })} />
    <${TopK} value=${selection.next_top_k} onPick=${(value) => select({ next_top_k: value })} />
    <${TopP} value=${selection.next_top_p} onPick=${(value) => select({ next_top_p: value })} />
    <${Slider} label="min-p" value=${selection.next_min_p} high=${0.5} step=${0.005}
      onPick=${(value) => select({ next_min_p: value })}
      write=${(p) => (p > 0 ? p.toFixed(3) : "off")} hint="Cut tokens less likely than this share of the likeliest" />
    <button disabled=${!isChanged}
      onClick=${() => select({ next_temperature: 1, next_top_k: 0, next_top_p: 1, next_min_p: 0 })}>as trained</button>
  </div>`;
}

/** The text up to the row's position followed by the token; for an encoder, the token there is replaced. */
function useForce(row) {
  const { kind } = useCapabilities();
  const field = kind === "encoder-decoder" ? "decoder" : "text";
  const selection = useSelection();
  const now = selection[field];
  const [said, setSaid] = useState({ problem: null, note: "", of: null });
  const force = async (token) => {
    try {
      const { ids, position } = row;
      const written = kind === "encoder" ? [...ids.slice(0, position), token, ...ids.slice(position + 1)]
        : [...ids.slice(0, position + 1), token];
      const { text, isSame } = await textOf(written, { model: otherModel(selection) || undefined });
      const note = isSame ? "" :
        "Read again, this text gives other tokens: letters join where they can, and special tokens are no text.";
      setSaid({ problem: null, note, of: text });
      select({ [field]: text, query: kind === "encoder" ? position : -1 },
        { remember: true, side: selection.change_show });
    } catch (problem) {
      setSaid({ problem, note: "", of: now });
    }
  };
  return said.of === now ? { force, ...said } : { force, problem: null, note: "" };
}
