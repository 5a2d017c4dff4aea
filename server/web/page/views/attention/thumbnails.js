// Thumbnails of all heads: their requests, and the picture of each with its range.
import { OTHER } from "../../core/compare.js";
import { useLook } from "../../core/fetching.js";
import { useEffect, useMemo, useRef, useState } from "../../core/html.js";
import { useCapabilities, useHead, useInput } from "../../core/model.js";
import { evenly, sizeOf } from "../../core/numbers.js";
import { transposed } from "../../core/projection.js";
import { useSequences } from "../../core/sequences.js";
import { useSelection } from "../../core/state.js";
import { useStore } from "../../core/store.js";
import { theme } from "../../core/theme.js";
import { bitmapOf } from "../../parts/matrix.js";
import { requestKind } from "./numbers.js";

const MOST_CELLS = 40; // queries and keys of a thumbnail; a longer text has means of cells, or every n-th cell
const CELLS_AT_ONCE = 64e6; // weights that the server may compute for one request
const NONE = [];

/**
 * thumbnails[row][head], with rows in layer order; numHere: layers of the current selection; isPicked: whether some tokens are
 * omitted. A request has as many layers as are cheap, and requests are sequential: others are not delayed by a deep model.
 */
export function useThumbnails() {
  const selection = useSelection();
  const mode = useStore(theme);
  const { attention_sink: showsFirst, attention_orientation: orientation, attention_kind } = selection;
  const kind = requestKind(attention_kind);
  const { route, requests, isPicked } = useRequests(kind);
  const [arrived, setArrived] = useState({ requests: null, entries: [] });
  const entries = arrived.requests === requests ? arrived.entries : NONE;
  const isDone = requests.length > 0 && entries.length === requests.length;
  const next = requests[entries.length] ?? null;
  const { entry, error, retry, isStale, loading } = useLook(next ? route : null, next);
  useEffect(() => {
    if (!entry || isStale || loading || !next) return;
    if (next.layers && entry.layers[0] !== next.layers[0]) return;
    setArrived({ requests, entries: [...entries, entry] });
  }, [entry, isStale, loading]);
  // The last complete wall is shown until the first part of the new one arrives, or fails.
  const last = useRef(NONE);
  if (entries.length || error) last.current = entries;
  const shown = selection.text === "" ? NONE : last.current;
  const thumbnails = useMemo(
    () => shown.flatMap((one) => thumbnailsOf(one, { showsFirst, orientation, mode })),
    [shown, showsFirst, orientation, mode],
  );
  const numHere = entries.reduce((sum, one) => sum + one.layers.length, 0);
  return { thumbnails, kind, route, isPicked, entries, numHere, requests, error, retry, isDone };
}

function useRequests(kind) {
  const selection = useSelection();
  const capabilities = useCapabilities();
  const { part, layers, numHeads } = useHead();
  const sequences = useSequences();
  const stack = capabilities.kind === "encoder-decoder" ? part : capabilities.kind;
  const numQueries = sequences[stack === "cross" ? "decoder" : stack].length;
  const numKeys = stack === "cross" ? sequences.encoder.length : numQueries;
  const route = kind === "norm" ? "v1/contributions" : "v1/attention";
  const input = useInput();
  const requests = useMemo(() => {
    if (selection.text === "" || numQueries === 0 || numKeys === 0 || sequences.loading) return [];
    const common = { ...input, part, ...sizeFor(kind, numQueries, numKeys, OTHER in input) };
    const together = Math.max(1, Math.floor(CELLS_AT_ONCE / (numHeads * numQueries * numKeys)));
    const starts = Array.from({ length: Math.ceil(layers.length / together) }, (_, i) => i * together);
    const all = starts.map((start) => ({ ...common, layers: layers.slice(start, start + together) }));
    return starts.length === 1 ? [common] : all;
  }, [JSON.stringify([input, input[OTHER]]), part, kind, numQueries, numKeys, sequences.loading, layers, numHeads]);
  return { route, requests, isPicked: kind !== "pattern" && Math.max(numQueries, numKeys) > MOST_CELLS };
}

/** Means of cells for weights, every n-th token for kinds without a mean. */
function sizeFor(kind, numQueries, numKeys, isDifference) {
  const isLong = Math.max(numQueries, numKeys) > MOST_CELLS;
  // a mean of many cells is too small for 8 bits, and a difference of 8-bit numbers has visible steps
  const dtype = isLong || isDifference ? "float16" : "uint8";
  if (kind === "pattern") return { kind, ...(isLong ? { resize: MOST_CELLS } : {}), dtype };
  const positions = { query_positions: evenly(numQueries, MOST_CELLS), key_positions: evenly(numKeys, MOST_CELLS) };
  return kind === "norm" ? positions : { kind, ...positions };
}

const arrayOf = (entry) => entry.arrays.attention ?? entry.arrays.norms;

export function joined(entries) {
  const parts = entries.map((entry) => arrayOf(entry).data);
  const data = new parts[0].constructor(parts.reduce((sum, part) => sum + part.length, 0));
  let start = 0;
  for (const part of parts) {
    data.set(part, start);
    start += part.length;
  }
  const layers = entries.reduce((sum, entry) => sum + entry.layers.length, 0);
  return { data, shape: [layers, ...arrayOf(entries[0]).shape.slice(1)] };
}

function thumbnailsOf(entry, { showsFirst, orientation, mode }) {
  const { data, shape } = arrayOf(entry);
  const [layers, heads, rows, columns] = shape;
  const isSigned = entry.isDifference || entry.kind === "scores" || entry.kind === "dots";
  const unit = data instanceof Uint8Array ? 1 / 255 : 1;
  const one = (index) => {
    const values = Float32Array.from(data.subarray(index * rows * columns, (index + 1) * rows * columns));
    if (!showsFirst && columns > 1) for (let row = 0; row < rows; row += 1) values[row * columns] = NaN;
    const most = sizeOf(values);
    // square root of weights: otherwise small ones next to a large one are invisible
    const isRooted = !isSigned || entry.isDifference;
    const shaded = values.map((value) => (isRooted ? Math.sign(value) * Math.sqrt(Math.abs(value) / most) : value / most));
    const options = { low: isSigned ? -1 : 0, high: 1, kind: isSigned ? "diverging" : "sequential", mode };
    const isTurned = orientation === "columns";
    const turned = isTurned ? transposed(shaded, rows, columns) : shaded;
    const canvas = isTurned ? bitmapOf(turned, columns, rows, options) : bitmapOf(turned, rows, columns, options);
    return { canvas, low: isSigned ? -most * unit : 0, high: most * unit, kind: options.kind };
  };
  const ofLayer = (layer) => Array.from({ length: heads }, (_, head) => one(layer * heads + head));
  return Array.from({ length: layers }, (_, layer) => ofLayer(layer));
}
