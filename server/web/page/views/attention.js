// Attention: the wall of all heads, one head as matrix and as text, and its rows while the model generates text.
import { useDifferenceName } from "../core/compare.js";
import { classes, html, useEffect, useRef } from "../core/html.js";
import { hasPositionBias, stackAt, useCapabilities, useHead } from "../core/model.js";
import { counted, format } from "../core/numbers.js";
import { select, useSelection } from "../core/state.js";
import { useStrongestPair } from "../core/strongest.js";
import { FieldChoices } from "../parts/choices.js";
import { useFollow } from "../parts/follow.js";
import { Answer, Problem } from "../parts/problem.js";
import { Term } from "../parts/term.js";
import { ToolRow } from "../parts/tool_row.js";
import { hasMask } from "./attention/asking.js";
import { HeadMatrix, HeadWords, TopKeys, useMarked } from "./attention/head.js";
import { lackOfNorms, useGrid } from "./attention/numbers.js";
import { Stacks } from "./attention/stacks.js";
import { Wall, isWide } from "./attention/wall.js";
import { lackOfWatching, useWatching } from "./attention/watch.js";

export function View() {
  const { attention_show: shown } = useSelection();
  return shown === "heads" ? html`<${OneHead} />` : html`<${Toolbar} /><${Stacks} />`;
}

function OneHead() {
  useStrongestPair({ keepsQuery: true });
  const place = useHead();
  const { answer, grid: answered, copied } = useGrid(place);
  const watching = useWatching();
  const { layers, numHeads } = place;
  const { live } = watching;
  const grid = live?.grid ?? answered;
  const isAnswered = live?.isDone && answered && answered.queries !== live.from;
  useEffect(() => {
    if (live?.isDone && (isAnswered || answer.error)) watching.drop();
  }, [live, isAnswered, answer.error]);
  // while rows arrive, the newest row is selected: that of the second last token
  const marked = useMarked(grid, live && !live.isDone ? Math.max(0, grid.queries.length - 2) : null);
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

// For <Answer> during generation: the rows are available.
const LIVE = { data: true, error: null, loading: false, isStale: false };

const KINDS = [["pattern", "weights"], ["norm", "value-weighted"], ["scores", "scores"], ["dots", "q·k"],
  ["unmasked", "q·k before the mask"]];
const UNSUBTRACTED = "The difference is not available during generation; show one side.";
const WATCHING = "The model continues the text. Each new token is shown with the row of weights that predicted it.";

/** watching: the head's rows during generation, if only one head is shown. */
function Toolbar({ watching, grid }) {
  const selection = useSelection();
  const capabilities = useCapabilities();
  const { part, stack, layer } = useHead();
  const has = { norm: !lackOfNorms(capabilities), unmasked: hasMask(part, stack, layer) };
  const kinds = KINDS.filter(([kind]) => has[kind] ?? true);
  const lack = grid?.isDifference ? UNSUBTRACTED : lackOfWatching(capabilities, part);
  return html`<${ToolRow}>
    <${FieldChoices} field="attention_show" label="Look at" remember choices=${[["heads", "one head"], ["stacks", "encoder, decoder"]]} />
    ${(watching || capabilities.kind === "encoder-decoder") && html`
    <${FieldChoices} field="attention_kind" label="Show" choices=${kinds} />
    <${FieldChoices} field="attention_orientation" label="Queries are" choices=${[["rows", "rows"], ["columns", "columns"]]} />
    ${watching && html`<${FieldChoices} field="attention_picture" label="As"
      choices=${[["both", "both"], ["matrix", "matrix"], ["text", "text"]]} />`}
    <${FieldChoices} field="attention_cells" label="Cells as" choices=${[["cells", "colours"], ["dots", "dots"]]} />
    <label title="Many heads give most of their weight to the first token; without it the colours show the others.">
      <input type="checkbox" checked=${!selection.attention_sink}
        onChange=${(event) => select({ attention_sink: !event.target.checked })} /> hide the first token</label>`}
    ${watching && (watching.isRunning
      ? html`<button class="primary stop-writing" onClick=${watching.stop}>Stop writing</button>`
      : html`<button disabled=${Boolean(lack) || !grid} title=${lack ?? WATCHING}
          onClick=${() => watching.start(grid)}>Continue and watch</button>`)}
  <//>
  ${watching && lack && html`<p class="hint">Nothing can be watched here. ${lack}</p>`}`;
}

function Head({ answer, grid, marked, live, request }) {
  const { attention_picture: picture } = useSelection();
  const { layer, head } = useHead();
  const difference = useDifferenceName(": ");
  const name = `Layer ${layer}, head ${head}${difference}`;
  const parts = { grid, ...marked, name, request };
  const box = useRef(null);
  useFollow(box, live && !live.isDone ? live.grid.queries.length : 0);
  return html`<div class="head-pictures" data-picture=${picture} ref=${box}>
    <${Answer} answer=${answer}>${() => grid && html`
      ${picture !== "text" && html`<${HeadMatrix} ...${parts}><${Meaning} grid=${grid} live=${live} /><//>`}
      ${picture !== "matrix" && html`<${HeadWords} ...${parts} />`}`}<//>
  </div>`;
}

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
    return "The similarity of query and key. Masked pairs are struck out: their score becomes −∞, their weight 0.";
  }
  return "The similarity of query and key, before scaling.";
}
