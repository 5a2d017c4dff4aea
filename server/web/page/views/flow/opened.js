// One open tensor: all its rows as a heat map, its computation with the real numbers, statistics and histogram.
import { useDifferenceName } from "../../core/compare.js";
import { useLook } from "../../core/fetching.js";
import { html, useMemo, useRef } from "../../core/html.js";
import { shownToken, useInput } from "../../core/model.js";
import { counted, format, grouped, indices, within } from "../../core/numbers.js";
import { select } from "../../core/state.js";
import { ColourScale, Matrix } from "../../parts/matrix.js";
import { Answer } from "../../parts/problem.js";
import { Table } from "../../parts/table.js";
import { Card, SaveMenu } from "../../parts/tools.js";
import { derivation } from "./derivation.js";
import { cellText, rangeOf } from "./diagram.js";
import { Spread, statistics } from "./histogram.js";
import { isOfEncoder, isOfKey, kindOf } from "./numbers.js";

const MOST_VALUES = 2_000_000; // 8 MB; of longer tensors the rows around the chosen one

/** All, or the rows around `position` that MOST_VALUES allows. */
function rowsAround(position, count, width) {
  const most = Math.max(1, Math.floor(MOST_VALUES / width));
  if (count <= most) return null;
  const first = within(count - most, 0, position - (most >> 1));
  return indices(most, first).map(Number);
}

export function Opened({ node, place, strips, scale }) {
  const isMap = node.point.axes.includes("key");
  const ofEncoder = isOfEncoder(node);
  const tokens = ofEncoder ? place.encoderTokens : place.tokens;
  const keys = node.id.startsWith("cross_attn.") ? place.encoderTokens : place.tokens;
  const position = ofEncoder ? place.encoderKey : isOfKey(node) ? place.key : place.query;
  const width = isMap ? keys.length : node.point.shape.at(-1);
  const positions = rowsAround(position, tokens.length, width);
  const headAxis = node.point.axes.find((axis) => axis === "head" || axis === "kv_head");
  const head = headAxis === "kv_head" ? place.keyHead : place.head;
  const body = {
    ...useInput(),
    points: [node.full],
    ...(headAxis ? { heads: head } : {}),
    ...(positions ? { positions } : {}),
    dtype: "float32",
  };
  const answer = useLook("v1/trace", body);
  const difference = useDifferenceName(" ");
  const array = answer.entry?.arrays[node.full];
  const rows = (positions ?? tokens.map((_, i) => i)).map((i) => ({ index: i, token: tokens[i] }));
  return html`<${Card} class="flow-opened" copy=${{ route: "v1/trace", body }}
      title=${html`${node.title} <code>${node.full}</code>${difference}`}>
    <p>${node.about}</p>
    ${!difference && html`<${Derivation} node=${node} place=${place} strips=${strips} scale=${scale} />`}
    ${positions && html`<p class="hint">Rows ${grouped(positions[0])} to ${grouped(positions.at(-1))} of${" "}
      ${grouped(tokens.length)}: the whole tensor is too large for the page.</p>`}
    <${Answer} answer=${answer} minHeight="16rem">${() =>
      array &&
      array.data.length === rows.length * width &&
      html`<${Tensor} node=${node} data=${array.data} isDifference=${answer.entry.isDifference}
        rows=${rows} width=${width} keys=${isMap ? keys : null}
        position=${position} keyPosition=${ofEncoder || node.id.startsWith("cross_attn.") ? place.encoderKey
          : place.key} head=${headAxis ? head : null} />`}<//>
  <//>`;
}

function Derivation({ node, place, strips, scale }) {
  const lines = derivation(node, { place, strips, scale });
  return lines.length > 0 && html`<ol class="derivation">${lines.map(([text, shape]) =>
    html`<li><code>${text}</code>${shape && html` <span class="hint">${shape}</span>`}</li>`)}</ol>`;
}

function Tensor({ node, data, isDifference, rows, width, keys, position, keyPosition, head }) {
  const picture = useRef(null);
  const rowNames = useMemo(() => rows.map(({ token }) => token), [rows.map(({ index, token }) => `${index}${token}`).join()]);
  const columnNames = useMemo(() => keys ?? indices(width), [keys, width]);
  const kind = kindOf(node, isDifference);
  const range = useMemo(() => rangeOf(data, kind, width), [data, kind, width]);
  const row = rows.findIndex(({ index }) => index === position);
  const selected = useMemo(() => ({ row, column: keys ? keyPosition : null }), [row, keys, keyPosition]);
  const pick = (cell) => {
    const { index } = rows[cell.row];
    select(keys ? { query: index, key: cell.column } : { [isOfKey(node) ? "key" : "query"]: index });
  };
  const columnTitle = keys ? "key" : node.point.axes.at(-1);
  const describe = (r, c) => {
    const column = keys ? `${c} “${shownToken(keys[c])}”` : `${columnTitle} ${c}`;
    return `${rows[r].index} “${shownToken(rowNames[r])}” · ${column}: ${cellText(data[r * width + c])}`;
  };
  const [ofRow, ofAll] = useMemo(
    () => [statistics(data.subarray(row * width, (row + 1) * width)), statistics(data)],
    [data, row, width],
  );
  const axes = keys ? "query × key" : `position × ${columnTitle}`;
  const beyond = useMemo(
    () => (kind === "diverging" ? data.reduce((sum, value) => sum + (Number.isFinite(value) && Math.abs(value) > range.high), 0) : 0),
    [data, kind, range],
  );
  const saved = [{ label: "tensor", array: { data, shape: [rows.length, width] }, rows: rowNames, columns: columnNames }];
  return html`<div class="flow-tensor">
    <div>
      <div class="toolbar"><span class="hint">${axes}${head === null ? "" : `, head ${head}`}: [${rows.length}, ${width}]</span>
        <${SaveMenu} picture=${picture} name=${node.full} arrays=${saved} /></div>
      <${Matrix} values=${data} rowNames=${rowNames} columnNames=${columnNames}
        rowTitle=${keys ? "query" : "position"} columnTitle=${columnTitle}
        kind=${kind} low=${range.low} high=${range.high} square=${Boolean(keys)} maxCell=${keys ? 26 : 22}
        label=${`${node.title}: ${keys ? "queries by keys" : `positions by ${columnTitle}`}`}
        selected=${selected} onPick=${pick} describe=${describe} handle=${picture} />
      <${ColourScale} ...${range} kind=${kind} />
      ${beyond > 0 && html`<p class="hint">The colours end at ±${format(range.high, 3)}, so that the other rows can be seen too.${" "}
        ${counted(beyond, "number")} beyond, up to ${format(Math.max(ofAll.most, -ofAll.least))} in size,
        ${beyond === 1 ? " has" : " have"} the colour of the end.</p>`}
    </div>
    <div>
      <${Table} class="statistics" aria-label="Statistics" names=${["statistic", `“${shownToken(rowNames[row] ?? "")}”`, "all rows"]}
        rows=${STATISTICS.map(([name, title, write = format]) => [title, write(ofRow[name]), write(ofAll[name])])} />
      <${Spread} values=${data} name=${node.full} />
    </div>
  </div>`;
}

const STATISTICS = [
  ["norm", "length"],
  ["mean", "mean"],
  ["deviation", "deviation"],
  ["least", "smallest"],
  ["most", "largest"],
  ["count", "numbers", grouped],
];
