// Who looks at whom: one head's pattern.
import { useLook } from "../core/fetching.js";
import { html, useMemo, useRef, useState } from "../core/html.js";
import { clamp, inputOf, useCapabilities, useHead } from "../core/model.js";
import { select, useSelection } from "../core/state.js";
import { Matrix } from "../parts/matrix.js";
import { Answer } from "../parts/problem.js";
import { CopyMenu, SaveMenu } from "../parts/tools.js";

export function View() {
  const selection = useSelection();
  const capabilities = useCapabilities();
  const { layer, head, part } = useHead();
  const [hovered, setHovered] = useState(null);
  const picture = useRef(null);
  const body = { ...inputOf(selection, capabilities), part, layers: layer, heads: head, dtype: "float32" };
  const answer = useLook(selection.text ? "v1/attention" : null, body);
  const entry = answer.entry;
  const selected = useMemo(
    () => entry && { row: clamp(selection.query, entry.tokens.length), column: clamp(selection.key, (entry.key_tokens ?? entry.tokens).length) },
    [entry, selection.query, selection.key],
  );
  return html`<section class="card">
    <header><h2>Layer ${layer}, head ${head}</h2>
      <${CopyMenu} route="v1/attention" body=${body} />
      ${entry && html`<${SaveMenu} picture=${picture} name=${`attention-layer${layer}-head${head}`}
        arrays=${[{ label: "pattern", array: { data: entry.arrays.attention.data, shape: entry.shape.slice(2) }, rows: entry.tokens, columns: entry.key_tokens ?? entry.tokens }]} />`}
    </header>
    <${Answer} answer=${answer}>${() => html`<${Matrix}
      values=${entry.arrays.attention.data} rowNames=${entry.tokens} columnNames=${entry.key_tokens ?? entry.tokens}
      rowTitle="query" columnTitle="key" low=${0} high=${1} label=${`Attention of layer ${layer}, head ${head}`}
      selected=${selected} hovered=${hovered} onHover=${setHovered} onPick=${({ row, column }) => select({ query: row, key: column })} handle=${picture} />`}<//>
  </section>`;
}
