// The title and tools of the view: the word that is moved, and the choice between arrows and amounts.
import { html } from "../../core/html.js";
import { shownToken, sidesOf } from "../../core/model.js";
import { FieldChoices } from "../../parts/choices.js";
import { spaced } from "../../parts/target_field.js";
import { ToolRow } from "../../parts/tool_row.js";

export function Head({ entry, title = "How", suffix = "", menus, says, children }) {
  return html`<header><h2>${title} ${entry ? html`<${Mover} entry=${entry} />` : title === "How" && "a word moves"}${suffix}</h2>
      ${menus}</header>
    <p class="hint">${says}</p>
    <${ToolRow}><${FieldChoices} field="moves_as" label="Show"
      choices=${[["arrows", "arrows"], ["amounts", "amounts"]]} />${children}<//>`;
}

function Mover({ entry }) {
  const position = entry.query_positions[0];
  const towards = (name, said) => entry[name] && html` ${said} <code class="word">${spaced(entry[name].token)}</code>`;
  return html`<code class="word query">${shownToken(sidesOf(entry, entry.part).queries[position])}<sub>${position}</sub></code>
    ${" moves"}${towards("target", " towards")}${towards("versus", " rather than")}`;
}
