// Two distributions over the vocabulary and their difference by token.
import { sideNames, useDifferenceName } from "../../core/compare.js";
import { html, useMemo } from "../../core/html.js";
import { descending, format, percent } from "../../core/numbers.js";
import { useSelection } from "../../core/state.js";
import { Scrolled } from "../../parts/scrolled.js";
import { Table } from "../../parts/table.js";
import { Term } from "../../parts/term.js";
import { TokenName } from "../../parts/token_name.js";
import { Card } from "../../parts/tools.js";
import { Fact } from "./numbers.js";
import { useName } from "./row.js";

const SHOWN = 20;

/** {row, drawn} of both sides (see row.js); body: the request of both. */
export function Difference({ before, after, body, children }) {
  const sides = sideNames(useSelection());
  const name = useDifferenceName();
  const apart = useMemo(() => after.drawn.probabilities.map((p, token) => p - before.drawn.probabilities[token]), [before, after]);
  const tokens = useMemo(() => Array.from(descending(apart.map(Math.abs)).subarray(0, SHOWN)), [apart]);
  const logits = after.row.logits.map((logit, token) => logit - before.row.logits[token]);
  const saved = [{ label: "differences of logits", array: { data: logits, shape: [logits.length] }, rows: ["logit"] }];
  const both = (one, two) => `${sides[0]} ${format(one)}, ${sides[1]} ${format(two)}`;
  const [first, second] = [before, after].map(({ row }) => row.logits[row.order[0]]);
  const rows = tokens.map((token) => [
    html`<code class="token"><${Name} row=${after.row} token=${token} /></code>`,
    percent(before.drawn.probabilities[token]), percent(after.drawn.probabilities[token]),
    html`<td class=${`number ${apart[token] < 0 ? "negative" : "positive"}`}>${percent(apart[token])}</td>`, format(logits[token]),
  ]);
  return html`<${Card} class="next-difference" title=${`The distribution: ${name}`} copy=${{ route: "v1/next", body }}
      save=${{ name: "next-difference", arrays: saved }}>
    ${children}
    <dl class="facts">
      <${Fact} name="entropy" note=${both(before.drawn.entropy, after.drawn.entropy)}
        >${format(after.drawn.entropy - before.drawn.entropy)} nats<//>
      <${Fact} name="logit of the likeliest" note=${both(first, second)}>${format(second - first)}<//>
      <${Fact} name="divergence" note=${html`nats: <${Term} of="Kullback-Leibler" />, of ${sides[1]} from ${sides[0]}`}
        >${format(divergence(before.drawn, after.drawn))}<//>
    </dl>
    <${Scrolled} label="The tokens"><${Table} aria-label="The tokens with the largest changes of probability"
      names=${["token", ...sides, "difference", "of the logit"]} rows=${rows} /><//>
  <//>`;
}

const Name = ({ row, token }) => html`<${TokenName} token=${useName(row, token)} />`;

/** Kullback-Leibler divergence: Σ p ln(p / q), p of the second side. */
function divergence({ probabilities: q }, { probabilities: p }) {
  let sum = 0;
  for (let token = 0; token < p.length; token += 1) if (p[token] > 0) sum += p[token] * Math.log(p[token] / q[token]);
  return sum;
}
