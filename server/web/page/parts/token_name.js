// A token as a name: its leading space kept, as a quiet sign, since " king" and "king" are two tokens.
import { html } from "../core/html.js";
import { shownToken } from "../core/model.js";

export function TokenName({ token }) {
  const begins = /^ \S/.test(token);
  return html`${begins && html`<span class="space" title="begins with a space">·</span>`}${shownToken(token)}`;
}
