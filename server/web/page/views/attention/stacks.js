// The parts of the model: encoder, decoder, and the attention between them.
import { useDifferenceName } from "../core/compare.js";
import { useLook } from "../core/fetching.js";
import { html, useMemo, useRef, useState } from "../core/html.js";
import { attendingLayer, clamp, inputOf, shownToken, useCapabilities, useHead, useTokens } from "../core/model.js";
import { format } from "../core/numbers.js";
import { select, useSelection } from "../core/state.js";
import { Matrix, scaleOf } from "../parts/matrix.js";
import { Answer } from "../parts/problem.js";
import { CopyMenu, SaveMenu } from "../parts/tools.js";
import { maskOf } from "./attention/numbers.js";
import { Facts, Kinds, maskWords } from "./stacks/kinds.js";
import { TwoLines } from "./stacks/two_lines.js";

const MOST_WORDS = 120; // in a line of text

const TITLES = {
  encoder: ["Encoder", "The text looks at itself, both ways."],
  decoder: ["Decoder", "The answer attends to its own tokens."],
  cross: ["Cross", "The answer attends to the text."],
};

export function View() {
  const { kind } = useCapabilities();
  const { text } = useSelection();
  return html`<div class="stacks">
    ${!text ? html`<p class="lack">Write something above to see who looks at whom.</p>` : kind === "encoder-decoder"
      ? html`<${Pair} />` : html`<${OneStack} />`}
    <${Kinds} kind=${kind} />
  </div>`;
}

/** {answer, body, layer, head} of one part's pattern at the selected layer and head, limited to those of its stack. */
function usePattern(part) {
  const selection = useSelection();
  const capabilities = useCapabilities();
  const stack = capabilities.stacks[part === "cross" ? "decoder" : part];
  const [layer, head] = [attendingLayer(stack, selection.layer), clamp(selection.head, stack.num_heads)];
  const body = { ...inputOf(selection, capabilities), part, layers: layer, heads: head, dtype: "float32" };
  return { part, layer, head, body, answer: useLook("v1/attention", body) };
}

/** Tokens and numbers of an answered pattern. */
const patternOf = ({ entry }) => ({
  queries: entry.tokens,
  keys: entry.key_tokens ?? entry.tokens,
  values: entry.arrays.attention.data,
});

function Pair() {
  const capabilities = useCapabilities();
  const { part } = useHead();
  const [encoder, decoder, cross] = [usePattern("encoder"), usePattern("decoder"), usePattern("cross")];
  const chosen = { encoder, decoder, cross }[part];
  return html`<p>The encoder reads the text at once; the decoder writes, and attends to the encoder's text. Point at a
    word to see whom it looks at.</p>
    <${Lines} pattern=${chosen} />
    <div class="panels">${[encoder, decoder, cross].map((pattern) =>
      html`<${Panel} key=${pattern.part} pattern=${pattern} isChosen=${pattern.part === part} />`)}</div>
    <div class="columns">${["encoder", "decoder"].map((name) =>
      html`<section class="card" key=${name}><h2>The ${name}</h2><${Facts} stack=${capabilities.stacks[name]}
        /></section>`)}</div>`;
}

/** The chosen part's pattern as two lines of text. */
function Lines({ pattern }) {
  const picture = useRef(null);
  const { part, layer, head, body, answer } = pattern;
  const difference = useDifferenceName();
  const names = {
    encoder: ["the text", "the text"],
    decoder: ["the answer", "the answer"],
    cross: ["the text (encoder)", "the answer (decoder)"],
  };
  const [keyName, queryName] = names[part];
  return html`<section class="card">
    <header><h2>${TITLES[part][0]}: layer ${layer}, head ${head}${difference && `, ${difference}`}</h2>
      <${CopyMenu} route="v1/attention" body=${body} />
      ${answer.entry && html`<${SaveMenu} picture=${picture} name=${`${part}-lines-layer${layer}-head${head}`}
        arrays=${[arrayOf(answer)]} />`}
    </header>
    <p class="hint"><b class="query">Below</b> looks at <b class="key">above</b>; the thicker the line, the more${
      difference && " it changed"}. A
      click chooses the word.</p>
    <${Answer} answer=${answer} minHeight="19rem">${() => html`<${Shown} pattern=${patternOf(answer)} part=${part}
      keyName=${`${keyName}: keys`} queryName=${`${queryName}: queries`} handle=${picture} />`}<//>
  </section>`;
}

/** The two lines; for long texts only the words around the selected ones. */
function Shown({ pattern: { queries, keys, values }, part, keyName, queryName, handle }) {
  const selection = useSelection();
  const query = clamp(selection.query, queries.length);
  const rows = around(query, queries.length);
  const columns = around(part === "cross" ? clamp(selection.key, keys.length) : query, keys.length);
  const cut = useMemo(() => {
    const width = columns.end - columns.start;
    const shown = new Float32Array((rows.end - rows.start) * width);
    for (let row = rows.start; row < rows.end; row += 1) {
      shown.set(
        values.subarray(row * keys.length + columns.start, row * keys.length + columns.end),
        (row - rows.start) * width,
      );
    }
    return {
      values: shown,
      queries: queries.slice(rows.start, rows.end),
      keys: keys.slice(columns.start, columns.end),
    };
  }, [values, queries, keys, rows.start, rows.end, columns.start, columns.end]);
  const pick = (place) =>
    select({ part, ...("query" in place ? { query: place.query + rows.start } : { key: place.key + columns.start }) });
  const isCut = cut.queries.length < queries.length || cut.keys.length < keys.length;
  return html`${isCut && html`<p class="hint">Words ${rows.start} to ${rows.end - 1} of ${queries.length} look at
    words ${columns.start} to ${columns.end - 1} of ${keys.length}; choose another word above to move.</p>`}
    <${TwoLines} ...${cut} query=${query - rows.start} keyName=${keyName} queryName=${queryName} onPick=${pick}
      label=${`${TITLES[part][0]} attention between two lines of text.`} handle=${handle} />`;
}

/** {start, end} of MOST_WORDS positions around one position; all if there are fewer. */
function around(position, count) {
  const start = Math.max(0, Math.min(count - MOST_WORDS, position - (MOST_WORDS >> 1)));
  return { start, end: Math.min(count, start + MOST_WORDS) };
}

function arrayOf({ entry }) {
  const { queries, keys, values } = patternOf({ entry });
  return {
    label: "pattern",
    array: { data: values, shape: [queries.length, keys.length] },
    rows: queries,
    columns: keys,
  };
}

/** The range of colours: weights from 0 to 1, or their differences, around 0. */
function rangeOf({ isDifference, arrays }) {
  return isDifference ? scaleOf(arrays.attention.data, "diverging") : { low: 0, high: 1, kind: "sequential" };
}

/** The pattern with NaN (drawn hatched) at masked pairs. */
const hatched = ({ keys, values }, hides) =>
  values.map((weight, i) => (hides(Math.floor(i / keys.length), i % keys.length) ? NaN : weight));

/** One part's pattern as a matrix; a click selects the part and its words. */
function Panel({ pattern, isChosen }) {
  const selection = useSelection();
  const [hovered, setHovered] = useState(null);
  const picture = useRef(null);
  const { part, layer, head, body, answer } = pattern;
  const { entry } = answer;
  const stack = useCapabilities().stacks[part === "cross" ? "decoder" : part];
  const shown = useMemo(() => entry && hatched(patternOf({ entry }), maskOf(part, stack, layer)), [entry]);
  const selected = useMemo(() => {
    if (!entry || !isChosen) return null;
    const { queries, keys } = patternOf({ entry });
    return { row: clamp(selection.query, queries.length), column: clamp(selection.key, keys.length) };
  }, [entry, isChosen, selection.query, selection.key]);
  return html`<section class=${isChosen ? "card chosen" : "card"}>
    <header><h2>${TITLES[part][0]}</h2>
      <${CopyMenu} route="v1/attention" body=${body} />
      ${entry && html`<${SaveMenu} picture=${picture} name=${`${part}-layer${layer}-head${head}`} arrays=${[arrayOf(answer)]} />`}
    </header>
    <p class="hint">${TITLES[part][1]} Layer ${layer}, head ${head}.${" "}
      ${isChosen ? html`<b>Shown above.</b>` : html`<button type="button" class="link"
        onClick=${() => select({ part })}>Show above</button>`}</p>
    <${Answer} answer=${answer} minHeight="12rem">${() => {
      const { queries, keys } = patternOf(answer);
      return html`<${Matrix} values=${shown} rowNames=${queries} columnNames=${keys} rowTitle="query" columnTitle="key"
        ...${rangeOf(entry)}
        label=${`${TITLES[part][0]} pattern of layer ${layer}, head ${head}`} selected=${selected} hovered=${hovered}
          onHover=${setHovered}
        describe=${(row, column) => {
          const weight = shown[row * keys.length + column];
          const names = `${shownToken(queries[row])} · ${shownToken(keys[column])}`;
          return `${names}: ${Number.isNaN(weight) ? "masked" : format(weight)}`;
        }}
        onPick=${({ row, column }) => select({ part, query: row, key: column })} handle=${picture} />`;
    }}<//>
  </section>`;
}

/** A model with one stack: its mask and its components. */
function OneStack() {
  const { kind, stacks } = useCapabilities();
  const { layer } = useHead();
  return html`<div class="columns">
    <section class="card"><h2>Components of this model</h2><${Facts} stack=${stacks[kind]} /></section>
    <${Mask} stack=${stacks[kind]} layer=${layer} />
  </div>`;
}

/** The mask of a layer: 1 where a query sees a key, blank where it does not. */
function Mask({ stack, layer }) {
  const { text, query, key } = useSelection();
  const { tokens } = useTokens(text);
  const [hovered, setHovered] = useState(null);
  const picture = useRef(null);
  const window = stack.sliding_windows?.[layer] ?? Infinity;
  const count = tokens.length;
  const values = useMemo(
    () =>
      Float32Array.from({ length: count * count }, (_, i) => {
        const distance = Math.floor(i / count) - (i % count);
        return (stack.causal && distance < 0) || Math.abs(distance) >= window ? -Infinity : 1;
      }),
    [count, window, stack],
  );
  const selected = useMemo(() => ({ row: clamp(query, count), column: clamp(key, count) }), [query, key, count]);
  const describe = (row, column) =>
    `${row} “${shownToken(tokens[row])}” ${Number.isFinite(values[row * count + column]) ? "sees"
      : "does not see"} ${column} “${shownToken(tokens[column])}”, ${format(Math.abs(row - column))} away`;
  return html`<section class="card">
    <header><h2>Who may see whom in layer ${layer}</h2>
      <${SaveMenu} picture=${picture} name=${`mask-layer${layer}`}
        arrays=${count ? [{ label: "mask", array: { data: values.map((value) => (value === 1 ? 1 : 0)),
          shape: [count, count] }, rows: tokens, columns: tokens }] : []} /></header>
    <p class="hint">In this stack ${maskWords(stack)}. Filled is seen, hatched is masked: its score is set to −∞ before
      the softmax.</p>
    ${
      count > 0 &&
      html`<${Matrix} values=${values} rowNames=${tokens} columnNames=${tokens} rowTitle="query" columnTitle="key"
        low=${0} high=${1.6} maxCell=${22}
      label="The mask: which keys each query sees" selected=${selected}
        hovered=${hovered} onHover=${setHovered} onPick=${({ row, column }) => select({ query: row, key: column })}
          describe=${describe} handle=${picture} />`
    }
  </section>`;
}
