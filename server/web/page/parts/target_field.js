// Field for one token of the vocabulary: typed as text, or selected from the model's own predictions.
import { html } from "../core/html.js";
import { shownToken } from "../core/model.js";
import { percent } from "../core/numbers.js";
import { select } from "../core/state.js";
import { Field } from "./field.js";
import { Problem } from "./problem.js";

/** A token for request bodies: "#421" is an id, any other text is itself, "" is none. */
export const targetOf = (typed) => (typed === "" ? null : /^#\d+$/.test(typed) ? Number(typed.slice(1)) : typed);

/** A token with its space shown, since " girl" and "girl" are two tokens. */
export function spaced(token) {
  if (!token.trim()) return shownToken(token);
  const spaces = token.replace(/^ +/, (found) => "·".repeat(found.length));
  return spaces.replace(/\n/g, "↵").replace(/\ufffd/g, "◌");
}

/** field: in the state, with the value `typed`; token: the one that was found for it; suggestions: [{token_id, token, probability}]. */
export function TargetField({ field, typed, label, token, empty, suggestions = [], error = null }) {
  const isMine = error?.param === field.split("_").at(-1);
  const isMeant = (one) => one.token_id === token?.token_id;
  const change = (value) => select({ [field]: value });
  return html`<div class="target-field">
    <label>${label} <${Field} type="text" size="12" spellcheck=${false} value=${typed} placeholder=${empty}
      title="A text that is one token (many begin with a space), or # and its id" onTake=${change} /></label>
    ${token && !suggestions.some(isMeant) && html`<code class="found"
      title="the token that is meant; · is a space">${spaced(token.token)}</code>`}
    ${suggestions.length > 0 && html`<span class="suggestions" role="group"
      aria-label=${`${label}: the model's prediction`}>${suggestions.map(
      (one) => html`<button aria-pressed=${Boolean(isMeant(one))} title=${percent(one.probability)}
        onClick=${() => change(`#${one.token_id}`)}>${spaced(one.token)}</button>`,
    )}</span>`}
    ${typed !== "" && html`<button class="quiet" onClick=${() => change("")}>reset</button>`}
    ${isMine && html`<${Problem} error=${error} />`}
    ${isMine && error.code === "not_one_token" && !typed.startsWith(" ") &&
      html`<button onClick=${() => change(` ${typed}`)}>Try it with a space before: “·${typed}”</button>`}
  </div>`;
}
