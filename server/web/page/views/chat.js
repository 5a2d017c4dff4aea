// Talk to the model, or let it continue a text; both show each token's probability and its alternatives.
import { html } from "../core/html.js";
import { useCapabilities } from "../core/model.js";
import { saved } from "../core/place.js";
import { select, useSelection } from "../core/state.js";
import { Choices } from "../parts/choices.js";
import { Conversation } from "./chat/conversation.js";

const MODES = [["chat", "Chat"], ["text", "Text"]];

export function View() {
  const { chat: hasTemplate } = useCapabilities();
  const { chat_mode: mode } = useSelection();
  const modes = hasTemplate && !saved && html`<${Choices} label=${html`<span class="unseen">Mode</span>`} choices=${MODES} value=${mode}
    onPick=${(value) => select({ chat_mode: value }, { remember: true })} />`;
  return html`<${Conversation} kind=${hasTemplate ? mode : "text"} modes=${modes} />`;
}
