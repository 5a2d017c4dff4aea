// The picture of Home: the text's words, lines from the words to the one that looks at them, and from it to the bars.
import { classes, html, useLayoutEffect, useRef, useState } from "../../core/html.js";
import { percent } from "../../core/numbers.js";
import { Bars } from "../../parts/bars.js";
import { useWidth } from "../../parts/picture.js";
import { shownOf } from "./words.js";

const SHORT = 60;
const LEAST = 0.02;
const SMALLEST = 0.0005; // share that is written
const [THIN, THICK] = [1.5, 9];

/**
 * weights: one for each word, or null; from: the index of the word that looks, or -1; unused: of the first word if heads give it
 * their unused weight, else -1; rows, columns, onPick: of the bars.
 */
export function Picture({ words, weights, from, unused, rows, columns, onPick, isPaused, children }) {
  const box = useRef(null);
  const [lines, setLines] = useState([]);
  const [width, setWidth] = useState(0);
  useWidth(box, setWidth);
  const { begin: start, end } = shownOf(words, weights ? from : words.length - 1);
  const shown = words.slice(start, end);
  useLayoutEffect(() => setLines(linesOf(box.current, { weights, start, end, from, unused, rows })),
    [words, weights, from, rows, width]);
  const length = shown.reduce((sum, { text }) => sum + text.length + 2, 0);
  return html`<div class=${classes("home-picture", length < SHORT && "is-short", isPaused && "paused")} ref=${box}>
    <p class="home-words">${start > 0 && html`<span class="hint">${start} words before …</span>`}
      ${shown.map(({ text }, i) => html`<${Word} key=${i + start} text=${text} share=${weights?.[i + start]}
        isFrom=${i + start === from} isFirst=${i + start === unused} />`)}
      ${end < words.length && html`<span class="hint">… ${words.length - end} words after</span>`}
      ${from < 0 && weights && html`<${Word} key="answer" text="its answer" isFrom />`}</p>
    <div class="home-next">${rows && html`<${Bars} rows=${rows} columns=${columns} largest=${1} isRanked write=${shareOf}
      onPick=${onPick} />`}${children}</div>
    <svg class="home-lines" aria-hidden="true">${lines.map(({ id, d, size, kind }) => html`<g key=${id} class=${kind}
      style=${{ "--size": `${THIN + (THICK - THIN) * size}px`, "--strength": 0.3 + 0.35 * size }}>
      <path class="home-line" d=${d} pathLength="100" /><path class="home-beads" d=${d} pathLength="100" /></g>`)}</svg>
  </div>`;
}

const shareOf = (share) => (share < SMALLEST ? "< 0.1 %" : percent(share));

function Word({ text, share = 0, isFrom, isFirst }) {
  return html`<span class=${classes("home-word", isFrom && "is-from", isFirst && "is-unused")} style=${{ "--share": share }}>${text}
    <small>${share >= LEAST ? percent(share, 2) : ""}</small></span>`;
}

/** The lines as paths, from the places of the elements; size: 0 to 1. */
function linesOf(box, { weights, start, end, from, unused, rows }) {
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
    if (i < start || i >= end || i === from || size < LEAST) return [];
    return [{ id: `word ${i}`, kind: i === unused ? "of-word is-unused" : "of-word", size, d: arcOf(placeOf(words[i - start]), to) }];
  });
  const bars = [...box.querySelectorAll(".home-next tbody tr")].map(placeOf);
  const isBeside = bars.length > 0 && bars[0].left >= to.right;
  const right = Math.max(...words.map((word) => placeOf(word).right)); // lines to the bars bend after it
  const isLast = !words.some((word) => word !== target && placeOf(word).top === to.top && placeOf(word).left > to.left);
  const fan = bars.flatMap((bar, i) => {
    const size = rows[i].value;
    if (size < LEAST || (!isBeside && i > 0)) return [];
    return [{ id: `bar ${i}`, kind: "of-bar", size, d: isBeside ? fanOf(to, bar, isLast, right) : dropOf(to, bar) }];
  });
  return [...arcs, ...fan];
}

/** Higher for a longer way; within the space above the first line. */
function arcOf(from, to) {
  const top = Math.max(4, Math.min(from.top, to.top) - 30 - Math.abs(to.x - from.x) * 0.45);
  const by = (to.x - from.x) * 0.12;
  return `M${from.x} ${from.top}C${from.x + by} ${top} ${to.x - by} ${top} ${to.x} ${to.top}`;
}

/** To a bar at the right: in the free space of the line, or below it if other words follow. */
function fanOf({ x, right, y, bottom }, bar, isLast, edge) {
  const [from, level, begin] = isLast ? [right, y, `M${right} ${y}`] : [x + 40, bottom + 40, `M${x} ${bottom}q0 40 40 40`];
  const bend = Math.min(160, (bar.left - Math.max(from, edge)) / 2);
  return `${begin}H${bar.left - 2 * bend}C${bar.left - bend} ${level} ${bar.left - bend} ${bar.y} ${bar.left} ${bar.y}`;
}

const dropOf = ({ x, bottom }, { top, left, right }) => {
  const end = Math.max(left + 20, Math.min(right - 20, x));
  return `M${x} ${bottom}C${x} ${(bottom + top) / 2} ${end} ${(bottom + top) / 2} ${end} ${top}`;
};
