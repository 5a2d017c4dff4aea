// Statistics of one row: entropy and perplexity, the model's prediction, and the actual token of the text.
import { html } from "../../core/html.js";
import { shownToken, useCapabilities } from "../../core/model.js";
import { format, grouped, percent } from "../../core/numbers.js";
import { Term } from "../../parts/term.js";
import { TokenName } from "../../parts/token_name.js";
import { useName } from "./row.js";

export function Numbers({ row, drawn }) {
  const { order } = row;
  return html`<div>
    <dl class="facts">
      <${Fact} name=${html`<${Term} of="entropy" />`} note=${`${format(drawn.entropy / Math.LN2)} bits`}
        >${format(drawn.entropy)} <${Term} of="nats" /><//>
      <${Fact} name=${html`<${Term} of="perplexity" />`} note="the number of equally likely tokens with the same uncertainty"
        >${format(Math.exp(drawn.entropy))}<//>
      <${Fact} name="kept" note=${`they hold ${percent(massOf(drawn))}`}>${grouped(drawn.numKept)} of ${grouped(order.length)}<//>
      <${Fact} name="entropy of the kept" note=${`perplexity ${format(Math.exp(drawn.keptEntropy))}`}>${format(drawn.keptEntropy)} nats<//>
    </dl>
    <${Formula} row=${row} drawn=${drawn} />
  </div>`;
}

export function Sentence({ row, drawn }) {
  const { tokens, position, order, actual } = row;
  const isEncoder = useCapabilities().kind === "encoder";
  const after = tokens.slice(Math.max(0, position - 5), position + 1).join("");
  return html`<p class="next-sentence">
    ${isEncoder ? html`In place of <q>${shownToken(tokens[position])}</q>`
      : html`After <q>${position > 5 ? "…" : ""}${after}</q>`} the likeliest token is <${Name} row=${row} token=${order[0]} />${" "}
    with ${percent(drawn.probabilities[order[0]])}. ${actual !== undefined && html`<${Actual} row=${row} drawn=${drawn} />`}
  </p>`;
}

export const Fact = ({ name, note, children }) =>
  html`<div><dt>${name}</dt><dd><b class="number">${children}</b><span>${note}</span></dd></div>`;

function Name({ row, token }) {
  return html`<code class="token"><${TokenName} token=${useName(row, token)} /></code>`;
}

function Actual({ row, drawn }) {
  const token = row.actual;
  const isEncoder = useCapabilities().kind === "encoder";
  const chance = drawn.probabilities[token];
  const surprise = chance > 0 ? `a surprise of ${format(-Math.log(chance))} nats` : "at this temperature it cannot come";
  return html`<span class="actual">The text ${isEncoder ? "has" : "continues with"} <${Name} row=${row} token=${token} />:
    rank ${row.rankOf(token)}, ${percent(chance)}, ${surprise}.</span>`;
}

function massOf({ probabilities, kept }) {
  let mass = 0;
  for (let token = 0; token < kept.length; token += 1) if (kept[token] > 0) mass += probabilities[token];
  return Math.min(mass, 1);
}

function Formula({ row, drawn }) {
  const { temperature } = drawn;
  const best = row.order[0];
  const z = format(row.logits[best]);
  if (temperature === 0) {
    return html`<p class="formula number">temperature 0 is greedy: all probability goes to the largest logit, z = ${z}</p>`;
  }
  const p = drawn.probabilities[best];
  return html`<p class="formula number">p = exp((z − z<sub>max</sub>) / T) / Σ exp((z<sub>i</sub> − z<sub>max</sub>) / T)
    = exp((${z} − ${z}) / ${format(temperature)}) / ${format(1 / p)} = ${format(p)}
    <span class="hint"> the likeliest token; the sum Σ is over all ${grouped(row.order.length)} logits</span></p>`;
}
