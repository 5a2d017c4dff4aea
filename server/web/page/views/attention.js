// Attention: the wall of all heads, one head as matrix and as text, and its rows while the model generates text.
import { useDifferenceName } from "../core/compare.js";
import { classes, html, useEffect, useMemo, useRef } from "../core/html.js";
import { clamp, hasPositionBias, stackAt, useCapabilities, useHead } from "../core/model.js";
import { counted, format } from "../core/numbers.js";
import { select, useSelection } from "../core/state.js";
import { Store } from "../core/store.js";
import { useStrongestPair } from "../core/strongest.js";
import { Choices } from "../parts/choices.js";
import { useFollow } from "../parts/follow.js";
import { Answer, Problem } from "../parts/problem.js";
import { Term } from "../parts/term.js";
import { ToolRow } from "../parts/tool_row.js";
import { HeadMatrix, HeadWords, TopKeys } from "./attention/head.js";
import { lackOfNorms, useGrid, useRequest } from "./attention/numbers.js";
import { hasMask } from "./attention/unmasked.js";
import { Wall, isWide } from "./attention/wall.js";
import { lackOfWatching, useWatching } from "./attention/watch.js";

export function View() {
  useStrongestPair({ keepsQuery: true });
  const request = useRequest();
  const { answer, grid: answered, copied } = useGrid(request);
  const watching = useWatching();
  const { layers, numHeads } = useHead();
  const { live } = watching;
  const grid = live?.grid ?? answered;
  const isAnswered = live?.isDone && answered && answered.queries !== live.from;
  useEffect(() => {
    if (live?.isDone && (isAnswered || answer.error)) watching.drop();
  }, [live, isAnswered, answer.error]);
  const marked = useMarked(grid, live);
  return html`<p class="hint">One <${Term} of="head" /> at a time: how much each token, as${" "}
      <b class="query"><${Term} of="query" /></b>, takes from the others, its <b class="key"><${Term} of="key">keys<//></b>.
      Point at a cell or a word; a click keeps it.</p>
    <${Toolbar} watching=${watching} grid=${answer.isStale ? null : answered} />
    <${Problem} error=${watching.error} isAction />
    <div class=${classes("attention", isWide(layers, numHeads) && "has-wide-wall")}>
      <${Wall} />
      <${Head} answer=${live ? LIVE : answer} grid=${grid} marked=${marked} live=${live} request=${copied} />
      ${grid && html`<${TopKeys} grid=${grid} ...${marked} />`}
    </div>`;
}

/** {selected: {query, key}, pointed}: the pair of the shared selection, and the store of the pair at the pointer. */
function useMarked(grid, live) {
  const { query, key } = useSelection();
  const pointed = useMemo(() => new Store(null), [grid]);
  const selected = useMemo(() => {
    if (!grid) return null;
    const last = grid.queries.length - 1;
    // while rows arrive, the newest row is selected: that of the second last token
    const newest = live && !live.isDone ? Math.max(0, last - 1) : null;
    return { query: newest ?? clamp(query, last + 1), key: clamp(key, grid.keys.length) };
  }, [grid, query, key, live]);
  return { selected, pointed };
}

// The answer for <Answer> during generation: the rows are available and no request is pending.
const LIVE = { data: true, error: null, loading: false, isStale: false };

const KINDS = [["pattern", "weights"], ["norm", "value-weighted"], ["scores", "scores"], ["dots", "q·k"],
  ["unmasked", "q·k before the mask"]];
const UNSUBTRACTED = "What is being written has no difference yet: show one side.";
const WATCHING = "The model continues with the text; each new token comes with the row of weights that chose it.";

/** How the head is shown. */
function Toolbar({ watching, grid }) {
  const selection = useSelection();
  const capabilities = useCapabilities();
  const { part, stack, layer } = useHead();
  const has = { norm: !lackOfNorms(capabilities), unmasked: hasMask(part, stack, layer) };
  const kinds = KINDS.filter(([kind]) => has[kind] ?? true);
  const lack = grid?.isDifference ? UNSUBTRACTED : lackOfWatching(capabilities, part);
  const pick = (field) => (value) => select({ [field]: value });
  return html`<${ToolRow}>
    <${Choices} label="Show" value=${selection.attention_kind} onPick=${pick("attention_kind")} choices=${kinds} />
    <${Choices} label="Queries are" value=${selection.attention_orientation} onPick=${pick("attention_orientation")}
      choices=${[["rows", "rows"], ["columns", "columns"]]} />
    <${Choices} label="As" value=${selection.attention_picture} onPick=${pick("attention_picture")}
      choices=${[["both", "both"], ["matrix", "matrix"], ["text", "text"]]} />
    <${Choices} label="Cells as" value=${selection.attention_cells} onPick=${pick("attention_cells")}
      choices=${[["cells", "colours"], ["dots", "dots"]]} />
    <label title="Many heads give most of their weight to the first token; without it the colours show the others.">
      <input type="checkbox" checked=${!selection.attention_sink}
        onChange=${(event) => select({ attention_sink: !event.target.checked })} /> hide the first token</label>
    ${watching.isRunning
      ? html`<button type="button" class="primary stop-writing" onClick=${watching.stop}>Stop writing</button>`
      : html`<button type="button" disabled=${Boolean(lack) || !grid} title=${lack ?? WATCHING}
          onClick=${() => watching.start(grid)}>Continue and watch</button>`}
  <//>
  ${lack && html`<p class="hint">Nothing can be watched here. ${lack}</p>`}`;
}

function Head({ answer, grid, marked, live, request }) {
  const { attention_picture: picture } = useSelection();
  const { layer, head } = useHead();
  const difference = useDifferenceName();
  const name = `Layer ${layer}, head ${head}${difference && `: ${difference}`}`;
  const parts = { grid, ...marked, name, request };
  const box = useRef(null);
  useFollow(box, live && !live.isDone ? live.grid.queries.length : 0);
  return html`<div class="head-pictures" data-picture=${picture} ref=${box}>
    <${Answer} answer=${answer}>${() => grid && html`
      ${picture !== "text" && html`<${HeadMatrix} ...${parts}><${Meaning} grid=${grid} live=${live} /><//>`}
      ${picture !== "matrix" && html`<${HeadWords} ...${parts} />`}`}<//>
  </div>`;
}

/** The meaning of the numbers: the formula with this head's numbers, the shape, and the axis with sum 1. */
function Meaning({ grid, live }) {
  const { attention_orientation: orientation } = useSelection();
  const { stack, layer } = useHead();
  const sizes = [counted(grid.queries.length, "query", "queries"), counted(grid.keys.length, "key")];
  const shape = (orientation === "rows" ? sizes : sizes.reverse()).join(" × ");
  const line = orientation === "rows" ? "row" : "column";
  if (live) {
    return html`<p class="hint" role="status">${live.isDone ? "Done" : "Writing"}: ${
      counted(grid.queries.length - live.firstNew, "new token")}, each with the ${line} of weights that chose it.</p>`;
  }
  if (grid.isDifference) {
    return html`<p class="hint">${shape}. ${grid.values.every((value) => value === 0 || Number.isNaN(value))
      ? "Nothing changed in this head: a change affects later layers and the model's prediction."
      : html`How much <b class="positive">more</b> or <b class="negative">less</b> each query gives to each key than it did.`}</p>`;
  }
  return html`<p class="attention-formula"><code>${formulaOf(grid.kind, stackAt(stack, layer))}</code>${" "}
    <span class="hint">${shape}. ${saysOf(grid, line, stack)}</span></p>`;
}

function formulaOf(kind, stack) {
  const products = `q·k × ${format(stack.attention_scale, 4)}`;
  const capped = stack.attn_logit_softcap ? `cap(${products}, ${format(stack.attn_logit_softcap, 4)})` : products;
  const scores = `${capped}${hasPositionBias(stack) ? " + position bias" : ""}`;
  const dots = `q·k = Σ of ${stack.head_dim} products`;
  return { dots, scores, pattern: `softmax(${scores})`, norm: "weight × ‖v W_O‖" }[kind];
}

function saysOf({ kind, beneath }, line, stack) {
  if (kind === "pattern") {
    const sum = stack.attention_sinks ? "sums to 1 with the weight of the head's sink" : "sums to 1";
    return `Each ${line} is one query and ${sum}: how much it takes from every key.`;
  }
  if (kind === "norm") {
    return html`<${Term} of="value-weighted">Value-weighted<//>: the length of each key's addition to the query's
      vector. A large weight on a short value adds little.`;
  }
  if (kind === "scores") {
    return html`The input of the softmax, ${line} by ${line}: <b class="positive">above 0</b>, <b class="negative">below</b>.`;
  }
  if (beneath) {
    return "How well query and key fit. Masked pairs are struck out: their score becomes −∞, their weight 0.";
  }
  return "How well query and key fit, before they are scaled.";
}
