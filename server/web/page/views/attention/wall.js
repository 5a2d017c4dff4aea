// The wall: every head of every layer as a thumbnail on one canvas; one is chosen.
import { OTHER, useDifferenceName } from "../../core/compare.js";
import { useLook } from "../../core/fetching.js";
import { html, useCallback, useEffect, useMemo, useRef, useState } from "../../core/html.js";
import { inputOf, useCapabilities, useHead, useTokens } from "../../core/model.js";
import { extent } from "../../core/numbers.js";
import { select, useSelection } from "../../core/state.js";
import { useStore } from "../../core/store.js";
import { theme } from "../../core/theme.js";
import { bitmapOf } from "../../parts/matrix.js";
import { Picture, scrollTo } from "../../parts/picture.js";
import { Problem } from "../../parts/problem.js";
import { CopyMenu, SaveMenu } from "../../parts/tools.js";
import { transposed } from "./numbers.js";

const THUMBNAIL = 40; // queries and keys of the largest thumbnail that is not a mean of cells
const CELLS_AT_ONCE = 64e6; // weights that one request may make the server compute
const LEFT = 30;
const TOP = 34;
const GAP = 3;
const SMALLEST = 16; // CSS pixels of a thumbnail; more heads than fit so go on in another line
const LARGEST = 54;
const NONE = [];
const WALKING = "Arrow keys choose another.";

export function Wall() {
  const selection = useSelection();
  const { part, layer, head, layers, numHeads } = useHead();
  const [hovered, setHovered] = useState(null);
  const picture = useRef(null);
  const { thumbnails, entries, requests, error, retry, isDone } = useThumbnails();
  const layout = useCallback((width) => layoutOf(width, layers, numHeads), [layers, numHeads]);
  const draw = useCallback(
    (context, { width, colours }) => drawWall(context, layout(width), thumbnails, colours),
    [layout, thumbnails],
  );
  const box = useRef(null);
  const shown = useRef("");
  const overlay = useCallback(
    (context, { width, colours }) => {
      const chosen = layout(width).place(layer, head);
      frame(context, chosen, 3, colours.accent);
      const place = `${layer} ${head} ${width}`;
      const isNew = shown.current !== place; // pointing elsewhere must not scroll back
      if (isNew) scrollTo(box.current, { y: chosen.y, height: chosen.size });
      shown.current = place;
      if (hovered) frame(context, layout(width).place(hovered.layer, hovered.head), 1.5, colours.ink);
    },
    [layout, layer, head, hovered],
  );
  const walk = (key) => {
    const [down, right] = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[key] ?? [0, 0];
    if (!down && !right) return false;
    const row = (layers.indexOf(layer) + down + layers.length) % layers.length;
    select({ layer: layers[row], head: (head + right + numHeads) % numHeads });
    return true;
  };
  const seen = hovered ?? { layer, head };
  const difference = useDifferenceName();
  const arrays = isDone ? [{ label: "thumbnails", array: joined(entries) }] : [];
  return html`<section class="card wall">
    <header><h2>All heads${difference && `: ${difference}`}</h2>
      ${requests.length > 0 && html`<${CopyMenu} route="v1/attention" body=${requests[0]} />
      <${SaveMenu} picture=${picture} name="attention-all-heads" arrays=${arrays} />`}
    </header>
    <p class="hint">Every picture is one head on the whole text, in shades of its own (by the square root). Click one to
      open it.</p>
    <${Problem} error=${error} retry=${retry} />
    ${selection.text !== "" &&
    html`<div class="wall-frame" ref=${box}><${Picture} draw=${draw} overlay=${overlay} handle=${picture}
      height=${(width) => layout(width).height}
      label=${`${layers.length} layers of ${numHeads} heads of the ${part}; chosen: layer ${layer}, head ${head}. ${WALKING}`}
      onPoint=${(x, y, width) => setHovered(x === null ? null : layout(width).at(x, y))}
      onPick=${(x, y, width) => {
        const place = layout(width).at(x, y);
        if (place) select(place);
      }}
      onKey=${walk} /></div>
    <p class="wall-name" role="status">layer ${seen.layer}, head ${seen.head}${hovered ? "" : " is open"}${
      isDone ? "" : `; ${thumbnails.length} of ${layers.length} layers are here`}</p>`}
  </section>`;
}

/**
 * {thumbnails, entries, requests, error, retry, isDone}: thumbnails[row][head], of the layers in their order, is a
 * canvas. As many layers as are cheap come in one request, the next ones after it, so that a long text on a deep model
 * fills the wall while other answers come.
 */
function useThumbnails() {
  const selection = useSelection();
  const capabilities = useCapabilities();
  const { part, layers, numHeads } = useHead();
  const { tokens, loading: isCounting } = useTokens(selection.text);
  const mode = useStore(theme);
  const { attention_sink: showsFirst, attention_orientation: orientation } = selection;
  const asked = JSON.stringify(inputOf(selection, capabilities));
  const requests = useMemo(() => {
    if (selection.text === "" || tokens.length === 0 || isCounting) return [];
    const common = { ...inputOf(selection, capabilities), part };
    // A mean of many cells is too small a number for 8 bits.
    const isSmall = tokens.length <= THUMBNAIL && !(OTHER in common); // a difference of bytes has steps that would be seen
    const size = isSmall ? { dtype: "uint8" } : { ...(tokens.length > THUMBNAIL ? { resize: THUMBNAIL } : {}), dtype: "float16" };
    const together = Math.max(1, Math.floor(CELLS_AT_ONCE / (numHeads * tokens.length ** 2)));
    const count = Math.ceil(layers.length / together);
    const starts = Array.from({ length: count }, (_, i) => i * together);
    if (starts.length === 1) return [{ ...common, ...size }];
    return starts.map((start) => ({ ...common, layers: layers.slice(start, start + together), ...size }));
  }, [asked, selection.change_show, selection.change_text, capabilities, part, tokens.length, isCounting, layers, numHeads]);

  const [arrived, setArrived] = useState({ requests: null, entries: [] });
  const entries = arrived.requests === requests ? arrived.entries : [];
  const isDone = requests.length > 0 && entries.length === requests.length;
  const next = requests[entries.length] ?? null;
  const { entry, error, retry, isStale, loading } = useLook(next ? "v1/attention" : null, next);
  useEffect(() => {
    if (!entry || isStale || loading || !next) return;
    if (next.layers && entry.layers[0] !== next.layers[0]) return;
    setArrived({ requests, entries: [...entries, entry] });
  }, [entry, isStale, loading]);
  // The last whole wall stays until the first of the new one is there.
  const last = useRef(NONE);
  if (entries.length) last.current = entries;
  const shown = selection.text === "" ? NONE : last.current;
  const thumbnails = useMemo(
    () => shown.flatMap((one) => canvasesOf(one, { showsFirst, orientation, mode })),
    [shown, showsFirst, orientation, mode],
  );
  return { thumbnails, entries, requests, error, retry, isDone };
}

/** All answers as one array [layer, head, query, key]. */
function joined(entries) {
  const parts = entries.map((entry) => entry.arrays.attention.data);
  const data = new parts[0].constructor(parts.reduce((sum, part) => sum + part.length, 0));
  let start = 0;
  for (const part of parts) {
    data.set(part, start);
    start += part.length;
  }
  const layers = entries.reduce((sum, entry) => sum + entry.shape[0], 0);
  return { data, shape: [layers, ...entries[0].shape.slice(1)] };
}

/** [layer][head] canvases of one answer. */
function canvasesOf(entry, { showsFirst, orientation, mode }) {
  const [layers, heads, rows, columns] = entry.shape;
  const { data } = entry.arrays.attention;
  const one = (index) => {
    const values = Float32Array.from(data.subarray(index * rows * columns, (index + 1) * rows * columns));
    if (!showsFirst && columns > 1) for (let row = 0; row < rows; row += 1) values[row * columns] = NaN;
    // by the square root: next to one large weight the many small ones would not be seen
    for (let i = 0; i < values.length; i += 1) values[i] = Math.sign(values[i]) * Math.sqrt(Math.abs(values[i]));
    const high = Math.max(...extent(values).map(Math.abs)) || 1;
    const options = entry.isDifference ? { low: -high, high, kind: "diverging", mode } : { low: 0, high, kind: "sequential", mode };
    if (orientation === "columns") return bitmapOf(transposed(values, rows, columns), columns, rows, options);
    return bitmapOf(values, rows, columns, options);
  };
  const ofLayer = (layer) => Array.from({ length: heads }, (_, head) => one(layer * heads + head));
  return Array.from({ length: layers }, (_, layer) => ofLayer(layer));
}

/** Where everything lies: {cell, perLine, height, place(layer, head), at(x, y)}, in CSS pixels. */
function layoutOf(width, layers, numHeads) {
  const most = Math.max(1, Math.floor((width - LEFT) / (SMALLEST + GAP)));
  const lines = Math.ceil(numHeads / most);
  const perLine = Math.ceil(numHeads / lines); // lines of one length: no line of two heads below one of fourteen
  const cell = Math.max(4, Math.min(LARGEST, Math.floor((width - LEFT) / perLine) - GAP));
  const pitch = cell + GAP;
  const band = lines * pitch + (lines > 1 ? 8 : 0); // of one layer
  const place = (layer, head) => ({
    x: LEFT + (head % perLine) * pitch,
    y: TOP + layers.indexOf(layer) * band + Math.floor(head / perLine) * pitch,
    size: cell,
  });
  const at = (x, y) => {
    const row = Math.floor((y - TOP) / band);
    const line = Math.floor((y - TOP - row * band) / pitch);
    const column = Math.floor((x - LEFT) / pitch);
    const head = line * perLine + column;
    const isWithin = (place, count) => place >= 0 && place < count;
    const exists = isWithin(row, layers.length) && isWithin(line, lines) && isWithin(column, perLine) && head < numHeads;
    return exists ? { layer: layers[row], head } : null;
  };
  return { cell, perLine, lines, layers, numHeads, height: TOP + layers.length * band + 4, place, at };
}

function drawWall(context, layout, thumbnails, colours) {
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "middle";
  context.lineWidth = 1;
  context.fillStyle = colours.muted;
  context.textAlign = "left";
  context.fillText("head →", LEFT, 7);
  context.fillText("layer", 0, TOP - 9);
  for (const [row, layer] of layout.layers.entries()) {
    const first = layout.place(layer, 0);
    context.textAlign = "right";
    context.fillStyle = colours.muted;
    context.fillText(String(layer), LEFT - 7, first.y + first.size / 2);
    for (let head = 0; head < layout.numHeads; head += 1) {
      const { x, y, size } = layout.place(layer, head);
      context.fillStyle = colours.sunk;
      context.fillRect(x, y, size, size);
      const thumbnail = thumbnails[row]?.[head];
      // cells larger than a pixel stay sharp; smaller ones are averaged
      context.imageSmoothingEnabled = thumbnail?.width > size;
      if (thumbnail) context.drawImage(thumbnail, x, y, size, size);
      context.strokeStyle = colours.line;
      context.strokeRect(x - 0.5, y - 0.5, size + 1, size + 1);
    }
  }
  context.fillStyle = colours.muted;
  context.textAlign = "center";
  const step = layout.cell < 22 ? 2 : 1;
  for (let head = 0; head < layout.perLine; head += step) {
    const { x, size } = layout.place(layout.layers[0], head);
    const written = layout.lines > 1 ? `${head}…` : String(head);
    context.fillText(written, x + size / 2, TOP - 9);
  }
}

function frame(context, { x, y, size }, lineWidth, colour) {
  context.strokeStyle = colour;
  context.lineWidth = lineWidth;
  const out = lineWidth / 2;
  context.strokeRect(x - out, y - out, size + 2 * out, size + 2 * out);
}
