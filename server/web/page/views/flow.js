// One open block: all its tensors, left to right, with the numbers of the selected words.
import { sidesOfRequest, useDifferenceName } from "../core/compare.js";
import { useLook } from "../core/fetching.js";
import { classes, html, useEffect, useMemo, useRef } from "../core/html.js";
import { clamp, shownToken, stackAt, useCapabilities, useHead, useInput } from "../core/model.js";
import { format, grouped, percent } from "../core/numbers.js";
import { lengthOf } from "../core/projection.js";
import { useSequences } from "../core/sequences.js";
import { select, useSelection } from "../core/state.js";
import { Select } from "../parts/choices.js";
import { Problem, Progress } from "../parts/problem.js";
import { Term } from "../parts/term.js";
import { Card } from "../parts/tools.js";
import { Diagram, cellText, nodesOf } from "./flow/diagram.js";
import { graphOf } from "./flow/graph.js";
import { isOfEncoder, isOfKey, useNumbers } from "./flow/numbers.js";
import { Opened } from "./flow/opened.js";

export function View() {
  const selection = useSelection();
  const capabilities = useCapabilities();
  const { part, stack, layer, head, keyHead, numLayers } = useHead({ ofAnyBlock: true });
  const stackName = part === "cross" ? "decoder" : part;
  const sequences = useSequences();
  const tokens = sequences[stackName];
  const isReady = tokens.length > 0 && !sequences.loading;
  const place = {
    stackName,
    stack: stackAt(stack, layer),
    layer,
    head,
    keyHead,
    tokens,
    encoderTokens: sequences.encoder,
    query: isReady ? clamp(selection.query, tokens.length) : null,
    key: isReady ? clamp(selection.key, tokens.length) : null,
    encoderKey: isReady ? clamp(selection.key, sequences.encoder.length) : null,
  };
  const graph = useMemo(
    () => graphOf(capabilities, stackName, layer, numLayers),
    [capabilities, stackName, layer, numLayers],
  );
  const numbers = useNumbers(graph, place);
  if (!selection.text) return html`<p class="lack">Write something above to see its numbers in the block.</p>`;
  return html`<div class="flow">
    <p>Block ${layer} (of 0 to ${numLayers - 1}), for the word <b class="query">${wordAt(tokens, place.query)}</b> (keys and
      values: of <b class="key">${wordAt(tokens, place.key)}</b>${stack.cross_attention
        ? html`, across of <b class="key">${wordAt(sequences.encoder, place.encoderKey)}</b>` : ""})
      in head ${head}. Each strip is that word's numbers, on the way along the <${Term} of="residual stream" />; click a box to
      see the tensor of all words.</p>
    <${Problem} error=${sequences.error ?? numbers.error} retry=${numbers.retry} />
    <${Block} graph=${graph} numbers=${numbers} place=${place} isBusy=${sequences.loading || numbers.loading} />
  </div>`;
}

const wordAt = (tokens, position) => (tokens.length ? `“${shownToken(tokens[position ?? 0])}”` : "…");

/** As in the server's answer; "n" and "m" until the texts are known. */
function shapeOf(node, { tokens, encoderTokens }) {
  const [n, m] = [tokens.length || "n", encoderTokens.length || "m"];
  const own = isOfEncoder(node) ? m : n;
  const keys = node.id.startsWith("cross_attn.") ? m : n;
  return node.point.shape.map((length, i) => length ?? (node.point.axes[i] === "key" ? keys : own));
}

function Block({ graph, numbers, place, isBusy }) {
  const { flow_open: open } = useSelection();
  const panel = useRef(null);
  const wasPicked = useRef(false);
  const { strips, scales, body } = numbers;
  const shapes = useMemo(
    () => new Map(nodesOf(graph).map((node) => [node.id, `[${shapeOf(node, place).join(", ")}]`])),
    [graph, place.tokens, place.encoderTokens],
  );
  const notes = useNextToken(place);
  const difference = useDifferenceName(": ");
  const node = nodesOf(graph).find(({ id }) => id === open) ?? null;
  useEffect(() => {
    if (wasPicked.current && node) panel.current?.scrollIntoView({ block: "nearest", behavior: "smooth" });
    wasPicked.current = false;
  }, [open]);
  const onOpen = (id) => {
    wasPicked.current = true;
    select({ flow_open: id === open ? "" : id });
  };
  const describe = ({ id, ...more }, cell) =>
    describeNode({ id, ...more }, cell, { strip: strips.get(id), shape: shapes.get(id), scale: scales.get(id), place });
  const tensors = [...new Map(nodesOf(graph).map(({ id, title }) => [id, `${title} · ${id}`]))];
  return html`<${Card} title=${`Block ${place.layer}, head ${place.head}${difference}`}
      aside=${html`<${Select} label="Tensor" id="tensor" value=${node ? open : ""} options=${[["", "none open"], ...tensors]}
        onPick=${onOpen} />`}
      aria-busy=${isBusy} copy=${body && { route: "v1/trace", body }} save=${{ name: `block-${place.layer}` }}>
      <div class=${classes("answer", isBusy && "stale")}><${Progress} active=${isBusy} />
      <${Diagram} graph=${graph} strips=${strips} shapes=${shapes} notes=${notes} layer=${place.layer} open=${open}
        onOpen=${onOpen} onLayer=${(layer) => select({ layer })} describe=${describe} /></div>
    <//>
    <div ref=${panel}>${node && place.query !== null && html`<${Opened} key=${node.id} node=${node}
      place=${place} strips=${strips} scale=${scales.get(node.id)} />`}</div>`;
}

function useNextToken({ stackName, query }) {
  const capabilities = useCapabilities();
  const works = capabilities.routes["/v1/lens"].works && stackName === "decoder" && query !== null;
  const { entry } = useLook(works ? "v1/lens" : null, {
    ...sidesOfRequest(useInput()).own,
    layers: -1,
    positions: query,
    top_k: 1,
  });
  return useMemo(() => {
    const said = entry && `${shownToken(entry.top_tokens[0][0][0])} ${percent(entry.arrays.probabilities.data[0])}`;
    return new Map(entry ? [["logits", said]] : []);
  }, [entry]);
}

function describeNode(node, cell, { strip, shape, scale, place }) {
  const position = isOfEncoder(node) ? place.encoderKey : isOfKey(node) ? place.key : place.query;
  const word = wordAt(isOfEncoder(node) ? place.encoderTokens : place.tokens, position);
  const name = `${node.title} · ${node.full} [${node.point.axes.join(", ")}] = ${shape}`;
  if (!strip) return name;
  const isMap = node.point.axes.includes("key");
  if (cell !== null) {
    const keys = node.id.startsWith("cross_attn.") ? place.encoderTokens : place.tokens;
    return `${name}; ${word} ${isMap ? `to ${wordAt(keys, cell)}` : `number ${grouped(cell)}`}: ${cellText(strip.values[cell])}`;
  }
  if (isMap) return `${name}; the row of ${word}`;
  const length = lengthOf(strip.values);
  return `${name}; ${word}: length ${format(length)}${scale === undefined ? "" : `, divided by ${format(scale)}`}`;
}
