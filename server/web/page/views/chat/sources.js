// Sources of an answer: the parts of a document that each sentence depends on, measured by their removal, as marks.
import { askStream } from "../../core/api.js";
import { html, render, useLayoutEffect, useRef } from "../../core/html.js";
import { format } from "../../core/numbers.js";
import { hideTooltip, showTooltip } from "../../parts/tooltip.js";
import { contentOf, highlight, placesOf, rangeOf, wordsOf } from "./words.js";

const [LONG, MOST] = [400, 1000]; // characters of a message with a document; tokens of an explained answer
const LEAST = 1; // nats
const TOO_MUCH = "they cost more than this server accepts. Choose fewer “Most tokens” in the settings.";
const explain = { by: "span", verify: 3 };

const hasDocument = ({ role, text, files }) => role === "user" && (files?.length > 0 || text.length >= LONG);

/** With a document, some events have `explained`: the `sources` [{end, parts}] of the sentences so far, or the reason of their `lack`. */
export async function* askAnswer(route, body, turns, options) {
  let hasBegun = false;
  let lack = "";
  if (body.messages && !body.interventions && !body.continue_final_message && turns.some(hasDocument)) {
    const sources = [];
    try {
      for await (const event of askStream(route, { max_tokens: MOST, ...body, explain }, options)) {
        hasBegun = true;
        const reasons = event.choices[0]?.reasons ?? [];
        sources.push(...reasons.map((one) => sourceOf(one, turns, body.messages.length - turns.length)));
        yield reasons.length ? { choices: [], explained: { sources: [...sources] } } : event;
      }
      return;
    } catch (error) {
      const isRefusal = hasBegun ? error.param?.startsWith("explain") : [400, 413, 422].includes(error.status);
      if (!isRefusal) throw error;
      lack = error.status === 413 ? TOO_MUCH : error.message;
    }
  }
  if (hasBegun) yield { choices: [], explained: { lack } };
  else {
    for await (const event of askStream(route, body, options)) { // another error is the answer's own
      yield lack ? { ...event, explained: { lack } } : event;
      lack = "";
    }
  }
}

/** The most important first; questions are no parts of a document. */
function sourceOf({ end, parts, verify }, turns, numSystem) {
  const found = verify.filter(({ effect }) => effect <= -LEAST).sort((a, b) => a.effect - b.effect).flatMap(({ span, effect }) => {
    const turn = turns[parts[span].message - numSystem];
    if (!turn || !hasDocument(turn)) return [];
    const content = contentOf(turn);
    const places = placesOf(content);
    const [from, to] = [places[parts[span].start], places[parts[span].end]];
    const isOther = turn.files?.length ? from >= content.length - turn.text.length : /[?？]$/.test(content.slice(from, to));
    return isOther ? [] : [{ turn: turn.id, start: from, end: to, effect }];
  });
  return { end, parts: found };
}

const times = (effect) => (effect < -14 ? "over a million" : format(Math.exp(-effect), 2));

/** A mark after each sentence that depends on a document. code: as of useCode, which draws the turn. */
export function Sources({ chat, turn: { id, text, sources, lack }, code }) {
  const place = useRef(null);
  useLayoutEffect(() => {
    const column = place.current.closest(".chat-column");
    const nameOf = (part) => `${part.turn} ${part.start}`;
    const names = [...new Set(sources?.flatMap(({ parts }) => parts.map(nameOf)))];
    const hide = () => {
      highlight("source", []);
      hideTooltip(place);
    };
    const mark = (part) => {
      const owner = chat.turns.find((turn) => turn.id === part.turn);
      if (!owner) return null; // of an imported file
      const content = contentOf(owner);
      const said = `Measured: without “${content.slice(part.start, part.end)}” this sentence is ${times(part.effect)} times less likely.`;
      const number = 1 + names.indexOf(nameOf(part));
      const show = ({ type, currentTarget }) => {
        const { left: x, top: y } = currentTarget.getBoundingClientRect();
        showTooltip(place, said, { x, y });
        const words = wordsOf(column, owner, content).filter(({ start, end }) => start >= part.start && end <= part.end);
        if (!words.length) return;
        highlight("source", [rangeOf(words[0], words.at(-1))]);
        if (type !== "click") return;
        const { parentElement } = words[0].node;
        parentElement.closest("details")?.setAttribute("open", "");
        parentElement.scrollIntoView({ block: "center" });
      };
      return html`<button class="plain" aria-label=${`Source ${number}. ${said}`} onPointerEnter=${show}
        onPointerLeave=${hide} onFocus=${show} onBlur=${hide} onClick=${show}>${number}</button>`;
    };
    const words = sources ? wordsOf(column, { id }, text) : [];
    const places = placesOf(text);
    const marks = (sources ?? []).toReversed().flatMap(({ end, parts }) => {
      const last = words.findLast((word) => word.end <= places[end]);
      if (!last || !parts.length) return [];
      const element = document.createElement("sup");
      const range = rangeOf(last);
      range.collapse(false);
      range.insertNode(element);
      render(parts.map(mark), element);
      return element;
    });
    return () => {
      hide();
      for (const element of marks) {
        const { parentNode } = element;
        render(null, element);
        element.remove();
        parentNode?.normalize();
      }
    };
  }, [sources, code]);
  return html`<p class="turn-end" ref=${place} hidden=${!lack}>The sources of this answer were not measured: ${lack}</p>`;
}
