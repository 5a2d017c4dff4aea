// Both texts in two rows, aligned: a word is dragged to the other text, or source and target are chosen one by one.
import { classes, html, useLayoutEffect, useRef, useState } from "../../core/html.js";
import { shownToken } from "../../core/model.js";
import { select } from "../../core/state.js";

/** from, into: the texts (0 is A, 1 is B) of the patch's source and target. Arrow keys move, Enter chooses, Escape gives up. */
export function Words({ tokens, columns, patch, from, into }) {
  const [held, setHeld] = useState(null); // a source without a target, [text, position]
  const [focused, setFocused] = useState("0 0");
  const box = useRef(null);
  const [source, target] = held ? [held] : [[from, patch.source], [into, patch.target]];
  const choose = (text, position) => {
    const isTarget = held && held[0] !== text;
    setHeld(isTarget ? null : [text, position]);
    if (isTarget) select({ patching_side: "ab"[held[0]], patching_source: held[1], patching_target: position });
  };
  const onKeyDown = (event, text, position) => {
    const along = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const isOver = event.key === "ArrowUp" || event.key === "ArrowDown";
    if (event.key === "Enter" || event.key === " ") choose(text, position);
    else if (event.key === "Escape" && held) setHeld(null);
    else if (along) wordAt(box, [text, position + along])?.focus();
    else if (isOver) wordAt(box, [1 - text, columns.find((one) => one[text] === position)[1 - text]])?.focus();
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const word = (text, position) => {
    if (position === null) return html`<span></span>`;
    const at = `${text} ${position}`;
    const isOf = (end) => end?.[0] === text && [end[1]].flat().includes(position);
    const token = tokens[text].tokens[position];
    return html`<span role="button" class=${classes("token", isOf(source) && "is-source", isOf(target) && "is-target")}
      data-at=${at} tabIndex=${at === focused ? 0 : -1} aria-pressed=${isOf(source)} draggable=${true}
      aria-label=${`text ${"AB"[text]}, token ${position}, ${token.trim() || "space"}`}
      onFocus=${() => setFocused(at)} onClick=${() => choose(text, position)} onKeyDown=${(event) => onKeyDown(event, text, position)}
      onDragStart=${(event) => {
        event.dataTransfer.setData("text/plain", token);
        setHeld([text, position]);
      }}
      onDragOver=${(event) => held && held[0] !== text && event.preventDefault()} onDragEnd=${() => setHeld(null)}
      onDrop=${(event) => {
        event.preventDefault();
        choose(text, position);
      }}>${shownToken(token)}</span>`;
  };
  return html`<section class="card" aria-label="The texts, aligned">
    <div class=${classes("patching-words", held && `to-${1 - held[0]}`)} ref=${box} role="group" aria-label="Words of both texts">
      <span aria-hidden="true"><b>A</b><i></i><b>B</b></span>
      ${columns.map(([a, b, isSame], i) => html`<span key=${i}>${word(0, a)}<i class=${
        classes(a !== null && b !== null && (isSame ? "same" : "other"))}></i>${word(1, b)}</span>`)}
      <${Arrow} box=${box} source=${source} target=${target} />
    </div>
    <p class="hint" role="status">${held ? `Now choose the word of text ${"BA"[held[0]]} that receives the vector.`
      : "Drag a word to the other text, or choose a source and then its target."}</p>
  </section>`;
}

const wordAt = (box, at) => box.current.querySelector(`[data-at="${at.join(" ")}"]`);

/** An arrow from the source to the target. */
function Arrow({ box, source, target }) {
  const [path, setPath] = useState(null);
  useLayoutEffect(() => {
    if (!target || Array.isArray(target[1])) return setPath(null);
    const edge = ({ offsetLeft, offsetTop, offsetWidth, offsetHeight }, text) =>
      [offsetLeft + offsetWidth / 2, offsetTop + (text === 0 ? offsetHeight : 0)];
    const draw = () => {
      const [[x, y], [toX, toY]] = [source, target].map((at) => edge(wordAt(box, at), at[0]));
      const middle = (y + toY) / 2;
      setPath(`M${x} ${y}C${x} ${middle} ${toX} ${middle} ${toX} ${toY}`);
    };
    const observer = new ResizeObserver(draw);
    observer.observe(box.current);
    return () => observer.disconnect();
  }, [String(source), String(target)]);
  return path && html`<svg aria-hidden="true"><marker id="patching-tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="5"
    markerHeight="5" orient="auto"><path d="M0 0L8 4L0 8z" /></marker><path d=${path} marker-end="url(#patching-tip)" /></svg>`;
}
