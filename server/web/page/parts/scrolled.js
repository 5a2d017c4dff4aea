// A box for a table that may be wider than the screen: it scrolls sideways by itself, with the keyboard too.
import { html } from "../core/html.js";

/** label: what is in it, for those who do not see it. */
export const Scrolled = ({ label, children }) =>
  html`<div class="scrolled" tabindex="0" role="region" aria-label=${label}>${children}</div>`;
