// Additions to a word's vector and to logits as amounts: by source word, head, layer and part.
import { OTHER, useDifferenceName } from "../../core/compare.js";
import { useJson, useLook } from "../../core/fetching.js";
import { html } from "../../core/html.js";
import { clamp, lackOf, sidesOf, useCapabilities, useHead, useInput } from "../../core/model.js";
import { useQueryOf } from "../../core/sequences.js";
import { useSelection } from "../../core/state.js";
import { FieldChoices } from "../../parts/choices.js";
import { Answer, Problem } from "../../parts/problem.js";
import { TargetField, targetOf } from "../../parts/target_field.js";
import { Term } from "../../parts/term.js";
import { CopyMenu, SaveMenu } from "../../parts/tools.js";
import { LogitParts, partsOf } from "./logit_parts.js";
import { Reasons, answersWithLabels } from "./reasons.js";
import { ByHead, BySource, Largest } from "./who.js";
import { Head } from "./head.js";
import { Layers } from "./layers.js";

export function Amounts() {
  const selection = useSelection();
  const capabilities = useCapabilities();
  const { part } = useHead();
  const lack = part === "encoder" ? "An encoder predicts no next token, so lengths are shown."
    : lackOf(capabilities, "/v1/next") ?? lackOf(capabilities, "/v1/lens"); // logits of several streams
  const query = useQueryOf(part);
  const canAsk = selection.text !== "" && query !== null;
  const hasTarget = canAsk && !lack;
  const given = useInput();
  // The unchanged model's prediction: both sides of a comparison have the same target token.
  const { interventions, ...unchanged } = given[OTHER] ?? given;
  const next = useJson(hasTarget ? "v1/next" : null, { ...unchanged, position: query, num_tokens: 6 });
  const guesses = next.data?.data[0].temperatures[0].tokens ?? [];
  const target = targetOf(selection.contributions_target) ?? guesses[0]?.token_id;
  const versus = targetOf(selection.contributions_versus);
  const isReady = canAsk && (!hasTarget || target !== undefined);
  const body = { ...given, part, query_positions: query, ...(hasTarget ? { target } : {}),
    ...(hasTarget && versus !== null ? { versus } : {}) };
  const answer = useLook(isReady ? "v1/contributions" : null, body);
  const isField = ["target", "versus"].includes(answer.error?.param);
  const reasons = html`<${Reasons} query=${query} part=${part} />`;
  const isFirst = answersWithLabels(capabilities);
  return html`<${Question} lack=${lack} guesses=${guesses} answer=${answer} body=${body} />
    <${Problem} error=${next.error} retry=${next.retry} />
    ${isFirst && reasons}
    <${Answer} minHeight="100vh"
      answer=${{ ...answer, error: isField ? null : answer.error, loading: answer.loading || next.loading }}>${() =>
      html`<${Findings} entry=${answer.entry} given=${given} />`}<//>
    ${!isFirst && reasons}`;
}

function Question({ lack, guesses, answer, body }) {
  const { contributions_target: target, contributions_versus: versus } = useSelection();
  const entry = answer.entry;
  const difference = useDifferenceName(" ");
  return html`<section class="card contributions-head">
    <${Head} entry=${entry} suffix=${difference}
      menus=${html`${body.input && html`<${CopyMenu} route="v1/contributions" body=${body} />`}
        ${entry && html`<${SaveMenu} name="contributions" arrays=${savedArrays(entry)} />`}`}
      says=${html`Every <${Term} of="head" /> adds a vector to the word's <${Term} of="residual stream" />: for each source
        word, its weight times its value, through <${Term} of="W_O" />. How long is
        that${lack ? "?" : html`, and how does it change the <${Term} of="logit" /> of the next word?`}`}>
      ${!lack && html`<${TargetField} field="contributions_target" typed=${target} label="Next word" token=${entry?.target}
          empty="its own guess" suggestions=${guesses} error=${answer.error} />
        <${TargetField} field="contributions_versus" typed=${versus} label="rather than" token=${entry?.versus}
          empty="any" error=${answer.error} />
        <${FieldChoices} field="contributions_measure" label="Count"
          choices=${[["logit", "change of its logit"], ["length", "length of the addition"]]} />`}
    <//>
    ${lack && html`<p class="lack">${lack}</p>`}
  </section>`;
}

function savedArrays(entry) {
  const { norms, attributions } = entry.arrays;
  const [layers, heads, , count] = norms.shape;
  const rows = Array.from({ length: layers * heads }, (_, i) => `layer ${entry.layers[Math.floor(i / heads)]} head ${i % heads}`);
  const columns = sidesOf(entry, entry.part).keys;
  const map = (label, { data }) => ({ label, array: { data, shape: [layers, heads, count] }, rows, columns });
  const pushes = attributions && [map("pushes on the logit [layer, head, key]", attributions), partsOf(entry)];
  return [map("lengths [layer, head, key]", norms), ...(pushes ?? [])];
}

function Findings({ entry, given }) {
  const selection = useSelection();
  const { keys } = sidesOf(entry, entry.part);
  const isLogit = entry.target !== null && entry.target !== undefined && selection.contributions_measure === "logit";
  const array = isLogit ? entry.arrays.attributions : entry.arrays.norms;
  const shared = { entry, array, isLogit, isSigned: isLogit || entry.isDifference, keys, chosenKey: clamp(selection.key, keys.length) };
  return html`<div class="columns">
      <${ByHead} ...${shared} /><${BySource} ...${shared} />
    </div>
    <div class="columns contributions-rows">
      <${Largest} ...${shared} />${entry.arrays.components && html`<${LogitParts} entry=${entry} />`}
    </div>
    <${Layers} entry=${entry} given=${given} />`;
}
