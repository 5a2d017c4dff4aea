// The branches as small trees: each begins with its forced token and can be selected.
import { html } from "../../core/html.js";
import { TokenName } from "../../parts/token_name.js";
import { choose } from "./story.js";

const SHOWN = 10; // tokens of a branch shown here
const LONGEST = 24; // characters of a prompt shown if there are several prompts

export function Branches({ written }) {
  const isOfOne = new Set(written.branches.map(({ prompt }) => prompt.text)).size === 1;
  const below = (parent) => {
    const found = written.branches.filter((branch) => branch.parent === parent);
    return found.length === 0
      ? null
      : html`<ul>${found.map((branch) => html`<li key=${branch.id}>
          <${Branch} branch=${branch} isOfOne=${isOfOne} isCurrent=${branch.id === written.current} />${below(branch.id)}</li>`)}</ul>`;
  };
  return html`<section class="card branches"><header><h2>Branches</h2></header>${below(null)}</section>`;
}

function Branch({ branch, isOfOne, isCurrent }) {
  const own = branch.tokens.slice(branch.from);
  const isForced = own[0]?.isForced;
  const text = own.slice(isForced ? 1 : 0, SHOWN).map((token) => token.text).join("").replace(/\s+/g, " ");
  const prompt = isOfOne ? "" : `${branch.prompt.text.slice(0, LONGEST)}… `;
  const name = branch.parent !== null ? `token ${branch.from + 1}` : `${prompt}${branch.interventions ? "changed" : "→"}`;
  return html`<button type="button" class="quiet" aria-current=${isCurrent} title=${branch.prompt.text}
    onClick=${() => choose(branch.id)}>
    <span class="hint">${name}</span>${" "}
    ${isForced && html`<code class="token"><${TokenName} token=${own[0].text} /></code>`}${text}${own.length > SHOWN ? "…" : ""}
  </button>`;
}
