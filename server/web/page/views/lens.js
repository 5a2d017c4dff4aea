// The logit lens: each layer's next-token prediction at every position, as if it were the last layer.
import { sideNames, sidesOfRequest, useDifferenceName } from "../core/compare.js";
import { useLook, useLookInParts } from "../core/fetching.js";
import { html, useMemo, useRef } from "../core/html.js";
import { clamp, useCapabilities, useInput } from "../core/model.js";
import { indices } from "../core/numbers.js";
import { useSequences } from "../core/sequences.js";
import { select, useSelection } from "../core/state.js";
import { Answer, Problem, Progress } from "../parts/problem.js";
import { spaced, targetOf } from "../parts/target_field.js";
import { Term } from "../parts/term.js";
import { Card } from "../parts/tools.js";
import { Cell } from "./lens/cell.js";
import { Grid, SHOWN, cellOf } from "./lens/grid.js";
import { Rank } from "./lens/rank.js";

const PAGE = 32; // positions per request: a model may have 50 layers and 100 000 words

export function View() {
  const selection = useSelection();
  const { last: tokens, error } = useSequences();
  const shown = useWindow();
  if (error) return html`<${Problem} error=${error} />`;
  if (!selection.text) return html`<p class="lack">Write a text above to see the prediction of each layer.</p>`;
  if (tokens.length === 0) return html`<${Progress} active />`;
  return html`<${Window} ...${shown(clamp(selection.query, tokens.length), tokens.length)} />`;
}

/** (query, count): the visible positions: the previous ones while they include the query, else those that end at the query. */
function useWindow() {
  const before = useRef({ first: 0, count: 0 });
  return (query, count) => {
    let { first } = before.current;
    const isHeld = before.current.count === count && query >= first && query < first + PAGE;
    if (!isHeld) first = Math.max(0, query + 1 - PAGE);
    before.current = { first, count };
    return { first, count, positions: indices(Math.min(PAGE, count - first), first).map(Number) };
  };
}

/** In both sides of a difference. */
function withSkips(entry, skips) {
  const sides = ["before", "after"].filter((side) => entry[side]).map((side) => [side, { ...entry[side], skips }]);
  return { ...entry, skips, ...Object.fromEntries(sides) };
}

/** A part with one position as an entry of all: the cells of the others are blank. */
function widened(entry, positions) {
  const [place, count] = [positions.indexOf(entry.positions[0]), positions.length];
  const { length: states } = entry.layers;
  const arrays = Object.entries(entry.arrays).map(([name, { data, shape, ...more }]) => {
    const size = data.length / states;
    const wide = new data.constructor(states * count * size);
    for (let state = 0; state < states; state += 1) {
      wide.set(data.subarray(state * size, (state + 1) * size), (state * count + place) * size);
    }
    return [name, { ...more, data: wide, shape: [states, count, ...shape.slice(2)] }];
  });
  const tops = entry.top_tokens.map(([words]) => positions.map((_, i) => (i === place ? words : [])));
  return { ...entry, positions, top_tokens: tops, arrays: Object.fromEntries(arrays) };
}

function Window({ first, count, positions }) {
  const selection = useSelection();
  const capabilities = useCapabilities();
  const given = useInput();
  const { lens_words: skips } = selection;
  const begun = useMemo(() => clamp(selection.query, count), [JSON.stringify(given), first]); // its column comes first
  const { body, answer } = useShown({ ...given, positions, top_k: skips ? 20 : SHOWN }, begun);
  const entry = useMemo(() => answer.entry && withSkips(answer.isPart ? widened(answer.entry, positions) : answer.entry, skips),
    [answer.entry, skips]);
  const difference = useDifferenceName(": ");
  const query = entry && clamp(selection.query, entry.tokens.length);
  const state = entry && clamp(selection.lens_state, entry.layers.length);
  const aside = html`<label title="Show each layer's likeliest word with a letter or a digit"><input type="checkbox" checked=${skips}
      onChange=${(event) => select({ lens_words: event.target.checked })} /> skip punctuation</label>
    ${count > PAGE && html`<${Pages} first=${first} count=${count} />`}`;
  return html`<${Card} title=${`Layers × positions${difference}`} aside=${aside} copy=${{ route: "v1/lens", body }}>
      ${entry?.isDifference ? html`<${Meaning} entry=${entry} selection=${selection} />`
        : html`<p class="hint">The <${Term} of="logit lens" />: each cell reads the <${Term} of="residual stream" /> after that
        layer with the final norm and the <${Term} of="unembedding" />, as if no layer followed. It shows the likeliest
        word ${capabilities.kind === "encoder" ? "in that place" : "to come next"}; the stronger the colour, the higher its
        probability. The last row is the model's own answer. Click a cell to open it.</p>`}
      <${Answer} answer=${answer}>${() => entry.positions.includes(query) &&
        html`<${Grid} entry=${entry} query=${query} state=${state} />`}<//>
    <//>
    ${entry?.positions.includes(query) && html`<div class="lens-rows">
      ${entry.isDifference
        ? html`<div class="lens-sides">${[entry.before, entry.after].map((one, side) => html`<${Cell} key=${side} entry=${one}
            query=${query} state=${state} side=${sideNames(selection)[side]} />`)}</div>`
        : html`<${Cell} entry=${entry} query=${query} state=${state} />`}
      <${Rank} entry=${entry} query=${query} state=${state} given=${given} /></div>`}`;
}

/** A difference compares the probability of one token: the followed one, or the first side's prediction at the query. */
function useShown(body, begun) {
  const { lens_target: typed, query } = useSelection();
  const { own, other } = sidesOfRequest(body);
  const first = useLookInParts("v1/lens", other ?? own, other || own.positions.length < 2 ? null : { ...own, positions: begun });
  const column = first.entry?.positions.indexOf(clamp(query, first.entry.tokens.length)) ?? -1;
  const target = targetOf(typed) ?? (column < 0 ? null : cellOf(first.entry, first.entry.layers.length - 1, column).ids[0]);
  const compared = { ...body, target };
  const both = useLook(other && target !== null ? "v1/lens" : null, compared);
  if (!other) return { body: own, answer: first };
  const isWaiting = first.loading || (target !== null && both.loading);
  return { body: compared, answer: first.error ? { ...first, data: null, entry: null } : { ...both, loading: isWaiting } };
}

function Meaning({ entry, selection }) {
  const [before, after] = sideNames(selection);
  return html`<p class="hint">Each cell has the word that the layer would say (${after}); a frame is where it was another one
    (${before}). The colour is how much the probability of <code>${spaced(entry.target.token)}</code> changed there. Click a
    cell to open it; follow another word below.</p>`;
}

function Pages({ first, count }) {
  const last = Math.min(first + PAGE, count) - 1;
  return html`<span class="toolbar lens-pages">
    <button disabled=${first === 0} onClick=${() => select({ query: first - 1 })}>← earlier</button>
    <span class="hint">positions ${first}–${last} of ${count}</span>
    <button disabled=${last === count - 1}
      onClick=${() => select({ query: Math.min(last + PAGE, count - 1) })}>later →</button>
  </span>`;
}
