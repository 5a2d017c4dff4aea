// The effect of one patch: the likeliest words before and after it, and the place of the result between both texts.
import { html } from "../../core/html.js";
import { shownToken } from "../../core/model.js";
import { format, percent } from "../../core/numbers.js";
import { Answer } from "../../parts/problem.js";
import { TokenName } from "../../parts/token_name.js";
import { CopyMenu } from "../../parts/tools.js";
import { useMeasured } from "./measure.js";

const SHOWN = 6; // words

/** says: the patched vector in words; body: the request. */
export function Effect({ tokens, ends, patch, from, into, says, body }) {
  const answer = useMeasured([body], ends);
  const word = (text, position) => html`<code class="token">${shownToken(tokens[text].tokens[position])}</code>`;
  return html`<section class="card patching-effect">
    <header><h2>One patch</h2><${CopyMenu} route="v1/next" body=${body} /></header>
    <p>Text ${"AB"[into]} is read again, and ${says}${" "}
      ${Array.isArray(patch.target) ? "at all tokens from the first difference on is replaced by that"
        : html`at ${word(into, patch.target)} is replaced by that of ${word(from, patch.source)}`} in text ${"AB"[from]}.</p>
    <${Answer} answer=${answer} minHeight="13rem">${([found]) => html`
      <${Gauge} share=${found.share} words=${ends.words} />
      <${Likeliest} found=${found} words=${ends.words} before=${ends.chances[into]} title=${`text ${"AB"[into]}`} />`}<//>
  </section>`;
}

/** The result as a place between text B (0) and text A (1). */
function Gauge({ share, words: [a, b] }) {
  const at = `${100 * Math.max(0, Math.min(1, share))}%`;
  return html`<div class="gauge"><span>as B: <b>${shownToken(b.name)}</b></span><span>as A: <b>${shownToken(a.name)}</b></span>
    <i style=${{ width: at }}></i><output style=${{ left: at }}>${format(share, 2)}</output></div>`;
}

function Likeliest({ found, words, before, title }) {
  const all = [...words.map(({ id, name }, i) => [id, name, found.chances[i]]),
    ...found.tokens.map((one) => [one.token_id, one.token, one.probability])];
  const shown = [...new Map(all.map((one) => [one[0], one])).values()].slice(0, SHOWN).sort((one, two) => two[2] - one[2]);
  const bar = (name, chance) => html`<div class=${name} style=${{ width: `${chance * 100}%` }}></div>`;
  return html`<table class="likeliest" aria-label="The likeliest next words"><thead><tr><th scope="col">next word</th>
      <th scope="col" colspan="2"><ul class="legend"><li><i class="swatch before"></i>${title}</li>
        <li><i class="swatch after"></i>patched</li></ul></th><th scope="col">${title}</th><th scope="col">patched</th></tr></thead>
    <tbody>${shown.map(([id, name, chance]) => html`<tr key=${id}>
      <th scope="row"><code class="token"><${TokenName} token=${name} /></code></th>
      <td class="bar" colspan="2">${bar("before", before[id])}${bar("after", chance)}</td>
      <td class="number">${percent(before[id])}</td><td class="number">${percent(chance)}</td></tr>`)}</tbody></table>`;
}
