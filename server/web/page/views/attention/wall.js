// The wall: a thumbnail of every head of every layer on one canvas; one is selected.
import { useDifferenceName } from "../../core/compare.js";
import { html, useCallback, useRef, useState } from "../../core/html.js";
import { useHead } from "../../core/model.js";
import { counted, format, within } from "../../core/numbers.js";
import { select, useSelection } from "../../core/state.js";
import { ColourScale } from "../../parts/matrix.js";
import { Picture, STEPS, scrollTo } from "../../parts/picture.js";
import { Problem } from "../../parts/problem.js";
import { Card } from "../../parts/tools.js";
import { NOUNS } from "./numbers.js";
import { joined, useThumbnails } from "./thumbnails.js";
import { drawChosen, drawWall, frame, layoutOf } from "./wall_layout.js";

const MANY = 96;
const WALKING = "Arrow keys choose another.";

/** Then the wall has the full width, with the pictures of one head below it. */
export const isWide = (layers, numHeads) => layers.length * numHeads >= MANY;

/** Leaves space for the selected head on the same screen. */
const mostHeight = () => within(innerHeight * 0.42, 280, 520);

export function Wall() {
  const selection = useSelection();
  const { part, layer, head, layers, numHeads } = useHead();
  const [hovered, setHovered] = useState(null);
  const { thumbnails, kind, route, isPicked, entries, numHere, requests, error, retry, isDone } = useThumbnails();
  const layout = useCallback((width) => layoutOf(width, layers, numHeads, mostHeight()), [layers, numHeads]);
  const draw = useCallback(
    (context, { width, colours }) => drawWall(context, layout(width), thumbnails, colours),
    [layout, thumbnails],
  );
  const box = useRef(null);
  const shown = useRef("");
  const overlay = useCallback(
    (context, { width, colours }) => {
      const chosen = layout(width).place(layer, head);
      drawChosen(context, layout(width), { layer, head }, colours);
      const place = `${layer} ${head} ${width}`;
      const isNew = shown.current !== place; // pointing at another place must not scroll back
      if (isNew) scrollTo(box.current, { y: chosen.y - chosen.size, height: 3 * chosen.size }); // with its neighbours
      shown.current = place;
      if (hovered) frame(context, layout(width).place(hovered.layer, hovered.head), 1.5, colours.ink);
    },
    [layout, layer, head, hovered],
  );
  const walk = (key) => {
    const [down, right] = STEPS[key] ?? [0, 0];
    if (!down && !right) return false;
    const row = (layers.indexOf(layer) + down + layers.length) % layers.length;
    select({ layer: layers[row], head: (head + right + numHeads) % numHeads });
    return true;
  };
  const seen = hovered ?? { layer, head };
  const range = thumbnails[layers.indexOf(seen.layer)]?.[seen.head];
  const said = saidOf(seen, range, kind);
  const difference = useDifferenceName(": ");
  const arrays = isDone ? [{ label: "thumbnails", array: joined(entries) }] : [];
  const [first] = requests;
  return html`<${Card} class="wall" title=${`All heads${difference}`} copy=${first && { route, body: first }}
      save=${first && { name: "attention-all-heads", arrays }}>
    <p class="hint">Every picture is one head on the whole text${isPicked ? ", some of its tokens left out" : ""}${
      selection.attention_kind === "unmasked" ? ", without masked pairs" : ""}. Each has a
      scale of its own${kind === "pattern" || kind === "norm" ? ", by the square root"
        : html`: <b class="positive">above 0</b>, <b class="negative">below</b>`}. Click one to open it.</p>
    <${Problem} error=${error} retry=${retry} />
    ${selection.text !== "" &&
    html`<div class="wall-frame" ref=${box}><${Picture} draw=${draw} overlay=${overlay}
      height=${(width) => layout(width).height}
      label=${`${counted(layers.length, "layer")} of ${counted(numHeads, "head")} of the ${
        part}; chosen: layer ${layer}, head ${head}. ${WALKING}`}
      tip=${hovered ? said : ""} keyTip=${said} tipAt=${(width) => topOf(layout(width).place(layer, head))}
      onPoint=${(x, y, width) => setHovered(x === null ? null : layout(width).at(x, y))}
      onPick=${(x, y, width) => {
        const place = layout(width).at(x, y);
        if (place) select(place);
      }}
      onKey=${walk} /></div>
    <div class="wall-foot"><p class="wall-name" role="status">${`layer ${seen.layer}, head ${seen.head}`}${
      hovered ? "" : " is open"}${isDone || error ? "" : `; ${numHere} of ${layers.length} layers are here`}</p>
      ${range && html`<${ColourScale} ...${range} isRooted=${range.low === 0} />`}</div>`}
  <//>`;
}

const topOf = ({ x, y, size }) => ({ x: x + size / 2, y });

function saidOf({ layer, head }, range, kind) {
  const most = range && format(range.high, 3);
  const told = range && (range.low < 0 ? `: each ${NOUNS[kind]} within ±${most}` : `: largest ${NOUNS[kind]} ${most}`);
  return `layer ${layer}, head ${head}${told ?? ""}`;
}
