// Both texts in two rows, aligned by their difference. A word is dragged to the other text, or both are chosen one by one.
import { classes, hasModifier, html, used, useRef, useState } from "../../core/html.js";
import { shownToken } from "../../core/model.js";
import { select } from "../../core/state.js";

/** columns: [[position in a, in b, whether the ids are equal]]; middles are paired from their ends: their last tokens have read most. */
export function aligned(a, b) {
  const width = Math.max(a.length, b.length);
  let first = 0;
  while (first < Math.min(a.length, b.length) && a[first] === b[first]) first += 1;
  const place = (tokens, i) => {
    const fromEnd = i - width + tokens.length;
    return i < first ? i : fromEnd < first ? null : fromEnd;
  };
  const columns = Array.from({ length: width }, (_, i) => [place(a, i), place(b, i)]);
  return { columns: columns.map(([i, j]) => [i, j, i !== null && a[i] === b[j]]), first };
}

/** from, into: the texts (0 is A, 1 is B) of source and target. Arrow keys move, Enter chooses, Escape gives up. */
export function Words({ tokens, columns, patch, from, into }) {
  const [held, setHeld] = useState(null); // a source without a target, [text, position]
  const [focused, setFocused] = useState("0 0");
  const box = useRef(null);
  const choose = (text, position) => {
    const isTarget = held && held[0] !== text;
    setHeld(isTarget ? null : [text, position]);
    if (isTarget) select({ patching_side: "ab"[held[0]], patching_source: held[1], patching_target: position });
  };
  const onKeyDown = (event, text, position) => {
    if (hasModifier(event)) return;
    const { key } = event;
    const along = { ArrowLeft: -1, ArrowRight: 1 }[key];
    const [row, place] = along ? [text, position + along] : [1 - text, columns.find((one) => one[text] === position)[1 - text]];
    if (key === "Enter" || key === " ") choose(text, position);
    else if (key === "Escape" && held) setHeld(null);
    else if (/^Arrow/.test(key)) box.current.querySelector(`[data-at="${row} ${place}"]`)?.focus();
    else return;
    used(event);
  };
  const isOf = ([text, positions], ...at) => at[0] === text && [positions].flat().includes(at[1]);
  const [source, target] = held ? [held, []] : [[from, patch.source], [into, patch.target]];
  const word = (text, position) => {
    if (position === null) return html`<span></span>`;
    const [at, token] = [`${text} ${position}`, tokens[text].tokens[position]];
    const isSource = isOf(source, text, position);
    const pick = () => choose(text, position);
    return html`<span role="button" class=${classes("token", isSource && "is-source", isOf(target, text, position) && "is-target")}
      data-at=${at} tabIndex=${at === focused ? 0 : -1} aria-pressed=${isSource} draggable=${true}
      aria-label=${`text ${"AB"[text]}, token ${position}, ${token.trim() || "space"}`}
      onFocus=${() => setFocused(at)} onClick=${pick} onKeyDown=${(event) => onKeyDown(event, text, position)}
      onDragStart=${(event) => {
        event.dataTransfer.setData("text/plain", token);
        setHeld([text, position]);
      }}
      onDragOver=${(event) => held && held[0] !== text && event.preventDefault()} onDragEnd=${() => setHeld(null)}
      onDrop=${(event) => {
        event.preventDefault();
        pick();
      }}>${shownToken(token)}</span>`;
  };
  const lineOf = ([a, b, isSame]) => classes(a !== null && b !== null && (isSame ? "same" : "other"),
    isOf(source, 0, a) && isOf(target, 1, b) && "down", isOf(source, 1, b) && isOf(target, 0, a) && "up");
  return html`<section class="card" aria-label="The texts, aligned">
    <div class=${classes("patching-words", held && `to-${1 - held[0]}`)} ref=${box} role="group" aria-label="Words of both texts">
      <span aria-hidden="true"><b>A</b><i></i><b>B</b></span>
      ${columns.map((one, i) => html`<span key=${i}>${word(0, one[0])}<i class=${lineOf(one)}></i>${word(1, one[1])}</span>`)}
    </div>
    <p class="hint" role="status">${held ? `Now choose the word of text ${"BA"[held[0]]} that receives the vector.`
      : "Drag a word to the other text, or choose a source and then its target."}</p>
  </section>`;
}
