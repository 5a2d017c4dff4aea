// Words on the screen: their places in a source text, and colours on them without new elements.
import { messagesOf } from "./tree.js";

const segmenter = new Intl.Segmenter(undefined, { granularity: "word" });
const FAR = [40, 400]; // characters of the source that are not shown before a short word, and before a longer one
const TEXTS = ":is(.bubble, .markdown, .plain-text, .panel > pre):not(.thought *)";

export const contentOf = (turn) => messagesOf({ system: "" }, [turn])[0].content;

/** The shown words and signs of a turn, with their places in a source from `at` on. */
export function wordsOf(column, { id }, source, at = 0) {
  const words = [];
  for (const element of column.querySelectorAll(`[data-turn="${id}"] ${TEXTS}`)) {
    const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
    for (let node; (node = walker.nextNode());) {
      if (node.parentElement.closest("figcaption, sup, math")) continue;
      for (const { segment: text, index: from } of segmenter.segment(node.data)) {
        const start = text.trim() ? source.indexOf(text, at) : -1;
        if (start < 0 || start - at > FAR[Number(text.length > 2)]) continue;
        at = start + text.length;
        words.push({ node, from, text, start, end: at });
      }
    }
  }
  return words;
}

/** In code units of each code point, and of the end: the API counts code points. */
export function placesOf(text) {
  let at = 0;
  return [...Array.from(text, (sign) => (at += sign.length) - sign.length), text.length];
}

export function rangeOf(first, last = first) {
  const range = new Range();
  range.setStart(first.node, first.from);
  range.setEnd(last.node, last.from + last.text.length);
  return range;
}

/** The style ::highlight(name), and nothing else. */
export const highlight = (name, ranges) => CSS.highlights?.set(name, new Highlight(...ranges));
