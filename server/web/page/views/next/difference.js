// Two distributions over the vocabulary and their difference by token.
import { sideNames, useDifferenceName } from "../../core/compare.js";
import { html, useMemo } from "../../core/html.js";
import { descending, format, percent } from "../../core/numbers.js";
import { useSelection } from "../../core/state.js";
import { Scrolled } from "../../parts/scrolled.js";
import { Term } from "../../parts/term.js";
import { TokenName } from "../../parts/token_name.js";
import { CopyMenu, SaveMenu } from "../../parts/tools.js";
import { useName } from "./row.js";

const SHOWN = 20;

/** before, after: {row, drawn} (see row.js and distribution.js), at the same sliders; body: the request of both. */
export function Difference({ before, after, body, children }) {
  const sides = sideNames(useSelection());
  const name = useDifferenceName();
  const apart = useMemo(() => after.drawn.probabilities.map((p, token) => p - before.drawn.probabilities[token]), [before, after]);
  const tokens = useMemo(() => Array.from(descending(apart.map(Math.abs)).subarray(0, SHOWN)), [apart]);
  const logits = after.row.logits.map((logit, token) => logit - before.row.logits[token]);
  const saved = [{ label: "differences of logits", array: { data: logits, shape: [logits.length] }, rows: ["logit"] }];
  return html`<section class="card next-difference">
    <header><h2>The distribution: ${name}</h2><${CopyMenu} route="v1/next" body=${body} />
      <${SaveMenu} name="next-difference" arrays=${saved} /></header>
    ${children}
    <dl class="facts">
      <${Fact} name="entropy" sides=${sides} values=${[before, after].map(({ drawn }) => drawn.entropy)} unit="nats" />
      <${Fact} name="logit of the likeliest" sides=${sides} values=${[before, after].map(({ row }) => row.logits[row.order[0]])} />
      <div><dt>divergence</dt><dd><b class="number">${format(divergence(before.drawn, after.drawn))}</b>
        <span>nats: <${Term} of="Kullback-Leibler" />, of ${sides[1]} from ${sides[0]}</span></dd></div>
    </dl>
    <${Scrolled} label="The tokens"><table class="plain-table" aria-label="The tokens with the largest changes of probability">
      <thead><tr>${["token", ...sides, "difference", "of the logit"].map((title) => html`<th scope="col">${title}</th>`)}</tr></thead>
      <tbody>${tokens.map((token) => html`<${Line} key=${token} token=${token} before=${before} after=${after}
        apart=${apart[token]} logit=${logits[token]} />`)}</tbody>
    </table><//>
  </section>`;
}

function Line({ token, before, after, apart, logit }) {
  const name = useName(after.row, token);
  return html`<tr><th scope="row"><code class="token"><${TokenName} token=${name} /></code></th>
    <td class="number">${percent(before.drawn.probabilities[token])}</td>
    <td class="number">${percent(after.drawn.probabilities[token])}</td>
    <td class=${`number ${apart < 0 ? "negative" : "positive"}`}>${percent(apart)}</td><td class="number">${format(logit)}</td></tr>`;
}

const Fact = ({ name, sides, values, unit = "" }) => html`<div><dt>${name}</dt>
  <dd><b class="number">${format(values[1] - values[0])} ${unit}</b>
    <span>${sides[0]} ${format(values[0])}, ${sides[1]} ${format(values[1])}</span></dd></div>`;

/** Kullback-Leibler divergence: Σ p ln(p / q), p of the second side. */
function divergence({ probabilities: q }, { probabilities: p }) {
  let sum = 0;
  for (let token = 0; token < p.length; token += 1) if (p[token] > 0) sum += p[token] * Math.log(p[token] / q[token]);
  return sum;
}
