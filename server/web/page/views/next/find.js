// Search for any token: its rank, logit and probability, however unlikely it is.
import { useJson } from "../../core/fetching.js";
import { html } from "../../core/html.js";
import { format, grouped, percent } from "../../core/numbers.js";
import { select, useSelection } from "../../core/state.js";
import { Problem } from "../../parts/problem.js";
import { TokenName } from "../../parts/token_name.js";
import { useAct } from "./likeliest.js";
import { useName } from "./row.js";

/** "#17" is the token with that id, other text its first token. */
const idOf = (find) => (/^#\d+$/.test(find) ? Number(find.slice(1)) : null);

const usePieces = (text) =>
  useJson(text && idOf(text) === null ? "tokenize" : null, { prompt: text, add_special_tokens: false, return_token_strs: true });

/** With a space before it, like most words in a text; "" for an id or a text that has one. */
const spaced = (find) => (find && idOf(find) === null && !find.startsWith(" ") ? ` ${find}` : "");

/** The likelier one of both spellings; null without a search. */
export function useFound(row) {
  const { next_find: find } = useSelection();
  const [plain, after] = [usePieces(find), usePieces(spaced(find))];
  const id = idOf(find);
  if (id !== null) return id < row.order.length ? id : null;
  const ids = [plain, after].map(({ data }) => data?.tokens[0]).filter((token) => token !== undefined);
  return ids.sort((a, b) => row.ranks[a] - row.ranks[b])[0] ?? null;
}

export function Find({ row, drawn, onPick }) {
  const { next_find: find } = useSelection();
  const id = idOf(find);
  return html`<section class="card find">
    <header><h2>Look a token up</h2></header>
    <label class="text-field"><span class="unseen">Token</span>
      <input type="search" value=${find} placeholder="a word, or #id" spellcheck=${false}
        onInput=${(event) => select({ next_find: event.target.value })} /></label>
    ${id !== null && id < row.order.length && html`<${Chance} row=${row} drawn=${drawn} token=${id} onPick=${onPick} />`}
    ${id !== null && id >= row.order.length && html`<p class="hint">There is no token ${grouped(id)}: ids go from 0
      to ${grouped(row.order.length - 1)}.</p>`}
    <${Read} text=${find} row=${row} drawn=${drawn} onPick=${onPick} />
    <${Read} text=${spaced(find)} row=${row} drawn=${drawn} onPick=${onPick} />
    <p class="hint">Most tokens that begin a word begin with its space, so both spellings are looked up.</p>
  </section>`;
}

function Read({ text, row, drawn, onPick }) {
  const { data, error } = usePieces(text);
  if (error) return html`<${Problem} error=${error} />`;
  if (!data || data.tokens.length === 0) return null;
  const rest = data.token_strs.slice(1);
  return html`<${Chance} row=${row} drawn=${drawn} token=${data.tokens[0]} name=${data.token_strs[0]} onPick=${onPick}
    note=${rest.length > 0 && `the first of ${data.tokens.length} tokens of “${text}”: ${data.token_strs.map((piece) =>
      `“${piece}”`).join(" ")}`} />`;
}

function Chance({ row, drawn, token, name, note, onPick }) {
  const asked = useName(row, token);
  const cut = drawn.cutBy(token);
  return html`<p class="chance">
    <button class="token" title=${useAct()} onClick=${() => onPick(token)}>
      <${TokenName} token=${name ?? asked} /></button>
    <b>rank ${row.rankOf(token)}</b> of ${grouped(row.order.length)},${" "}
    <span class="number">${percent(drawn.probabilities[token])}</span>,
    logit <span class="number">${format(row.logits[token])}</span>,${" "}
    ${cut ? `cut by ${cut}` : `drawn with ${percent(drawn.kept[token])}`}
    ${note && html`<span class="hint">${note}</span>`}
  </p>`;
}
