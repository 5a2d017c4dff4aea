// The likeliest tokens in order, each with its probability before and after truncation, together.
import { classes, html, useState } from "../../core/html.js";
import { useCapabilities } from "../../core/model.js";
import { format, percent } from "../../core/numbers.js";
import { TIED } from "../../parts/bars.js";
import { TokenName } from "../../parts/token_name.js";
import { Card } from "../../parts/tools.js";

const ACTS = { decoder: "write it and continue", encoder: "put it in this place" };
export const useAct = () => ACTS[useCapabilities().kind] ?? ACTS.decoder;
const SHOWN = 20;
const MOST = 100; // number of token names that row.js has

export function Likeliest({ row, drawn, found, onPick }) {
  const [shown, setShown] = useState(SHOWN);
  const tokens = Array.from(row.order.subarray(0, shown));
  const { compute_dtype: dtype } = useCapabilities();
  const act = useAct();
  const full = Math.max(drawn.kept[row.order[0]], drawn.probabilities[row.order[0]], 1e-30);
  const legend = html`<ul class="legend"><li><i class="swatch before"></i>softmax</li><li><i class="swatch after"></i>distribution for
    drawing</li><li><i class="swatch cut"></i>cut</li></ul>`;
  return html`<${Card} title="The likeliest tokens" aside=${legend}>
    <table class="likeliest" aria-label="The likeliest tokens">
      <thead><tr><th scope="col">#</th><th scope="col">token</th><th scope="col"><span class="unseen">bars</span></th>
        <th scope="col">softmax</th><th scope="col">drawn</th></tr></thead>
      <tbody>${tokens.map((token) => html`<${Line} key=${token} row=${row} drawn=${drawn} token=${token}
        full=${full} act=${act}
        isFound=${token === found} onPick=${onPick} />`)}</tbody>
    </table>
    ${tokens.some(row.isTied) && html`<p class="hint">Ranks with = are of equal logits: ${dtype} has no numbers between
      them. The order of such tokens means nothing.</p>`}
    ${shown < Math.min(MOST, row.order.length)
      && html`<button class="quiet" onClick=${() => setShown(MOST)}>Show ${MOST}</button>`}
  <//>`;
}

function Line({ row, drawn, token, full, act, isFound, onPick }) {
  const cut = drawn.cutBy(token);
  const [before, after] = [drawn.probabilities[token], drawn.kept[token]];
  const name = row.nameOf(token);
  const isActual = row.actual === token;
  return html`<tr class=${classes(cut && "cut", isFound && "on")}>
    <td class="rank" title=${row.isTied(token) ? TIED : undefined}>${row.rankOf(token)}</td>
    <th scope="row"><button class="token" title=${`id ${token}, logit ${format(row.logits[token])}: ${act}`}
      onClick=${() => onPick(token)}><${TokenName} token=${name} /></button>${isActual &&
      html`<span class="hint" title="the token that the text has there"> ← text</span>`}</th>
    <td class="bar"><div class="before" style=${{ width: `${(before / full) * 100}%` }}></div>
      <div class="after" style=${{ width: `${(after / full) * 100}%` }}></div></td>
    <td class="number">${percent(before)}</td>
    <td class="number">${cut ? html`<span class="why-cut">${cut}</span>` : percent(after)}</td>
  </tr>`;
}
