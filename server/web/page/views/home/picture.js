// The picture of Home: the text's words, lines from the words to the one that looks at them, and from it to the bars.
import { classes, html, useEffect, useLayoutEffect, useRef, useState } from "../../core/html.js";
import { percent } from "../../core/numbers.js";
import { Bars } from "../../parts/bars.js";

const MOST_WORDS = 32; // the last ones of a longer text
const SHORT = 60; // characters of a text in larger type
const LEAST = 0.01; // weights and probabilities below it have no line
const [THIN, THICK] = [1.5, 9]; // CSS pixels of a line

/**
 * words: see words.js; weights: one for each, or null; from: the index of the word that looks, -1: it is not among
 * them; unused: of the first word if heads give it their unused weight, else -1; rows, columns: of the bars, as `Bars`
 * has them, or null; onPick(index): a click on a bar; isPaused: whether nothing moves.
 */
export function Picture({ words, weights, from, unused, rows, columns, onPick, isPaused, children }) {
  const box = useRef(null);
  const [lines, setLines] = useState([]);
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(entry.contentRect.width));
    observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  const start = Math.max(0, words.length - MOST_WORDS);
  useLayoutEffect(() => setLines(linesOf(box.current, { weights, start, from, unused, rows })),
    [words, weights, from, rows, width]);
  const length = words.slice(start).reduce((sum, { text }) => sum + text.length + 2, 0);
  return html`<div class=${classes("home-picture", length < SHORT && "is-short", isPaused && "paused")} ref=${box}>
    <p class="home-words">${start > 0 && html`<span class="hint">… ${start} words before …</span>`}
      ${words.slice(start).map(({ text }, i) => html`<${Word} key=${i + start} text=${text} share=${weights?.[i + start]}
        isFrom=${i + start === from} isFirst=${i + start === unused} />`)}
      ${from < 0 && weights && html`<${Word} key="answer" text="its answer" isFrom />`}</p>
    <div class="home-next">${rows && html`<${Bars} rows=${rows} columns=${columns} largest=${1} write=${percent}
      onPick=${onPick} />`}${children}</div>
    <svg class="home-lines" aria-hidden="true">${lines.map(({ id, d, size, kind }) => html`<g key=${id} class=${kind}
      style=${{ "--size": `${THIN + (THICK - THIN) * size}px`, "--strength": 0.3 + 0.6 * size }}>
      <path class="home-line" d=${d} pathLength="100" /><path class="home-beads" d=${d} pathLength="100" /></g>`)}</svg>
  </div>`;
}

function Word({ text, share = 0, isFrom, isFirst }) {
  return html`<span class=${classes("home-word", isFrom && "is-from", isFirst && "is-unused")} style=${{ "--share": share }}>${text}
    <small>${share >= LEAST ? percent(share) : ""}</small></span>`;
}

/** [{id, d, size, kind}]: the lines as paths, from the places of the elements; size: 0 to 1, of their width. */
function linesOf(box, { weights, start, from, unused, rows }) {
  const edge = box.getBoundingClientRect();
  const placeOf = (element) => {
    const { left, right, top, bottom } = element.getBoundingClientRect();
    return { x: (left + right) / 2 - edge.left, left: left - edge.left, right: right - edge.left, top: top - edge.top,
      bottom: bottom - edge.top, y: (top + bottom) / 2 - edge.top };
  };
  const target = box.querySelector(".is-from");
  if (!target) return [];
  const to = placeOf(target);
  const words = [...box.querySelectorAll(".home-word")];
  const arcs = (weights ?? []).flatMap((size, i) => {
    if (i < start || i === from || size < LEAST) return [];
    return [{ id: `word ${i}`, kind: i === unused ? "of-word is-unused" : "of-word", size, d: arcOf(placeOf(words[i - start]), to) }];
  });
  const bars = [...box.querySelectorAll(".home-next tbody tr")].map(placeOf);
  const isBeside = bars.length > 0 && bars[0].left >= to.right;
  const fan = bars.flatMap((bar, i) => {
    const size = rows[i].value;
    if (size < LEAST || (!isBeside && i > 0)) return [];
    return [{ id: `bar ${i}`, kind: "of-bar", size, d: isBeside ? fanOf(to, bar) : dropOf(to, bar) }];
  });
  return [...arcs, ...fan];
}

/** An arc above the words, from one to another, higher for a longer way; within the space above the first line. */
function arcOf(from, to) {
  const top = Math.max(4, Math.min(from.top, to.top) - 30 - Math.abs(to.x - from.x) * 0.45);
  const by = (to.x - from.x) * 0.12;
  return `M${from.x} ${from.top}C${from.x + by} ${top} ${to.x - by} ${top} ${to.x} ${to.top}`;
}

const fanOf = ({ right, y }, bar) => {
  const middle = (right + bar.left) / 2;
  return `M${right} ${y}C${middle} ${y} ${middle} ${bar.y} ${bar.left} ${bar.y}`;
};
const dropOf = ({ x, bottom }, { top, left, right }) => {
  const end = Math.max(left + 20, Math.min(right - 20, x));
  return `M${x} ${bottom}C${x} ${(bottom + top) / 2} ${end} ${(bottom + top) / 2} ${end} ${top}`;
};
