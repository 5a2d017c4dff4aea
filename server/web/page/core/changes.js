// Changes inside the model: as a list in the address, and as the interventions of a request.

export const MOST_CHANGES = 64; // as the server accepts

/** By their names in the address: the point, whether it has heads and positions, and its operations. */
export const PLACES = {
  head: { point: "attn.hook_z", hasHead: true, hasPosition: true, ops: ["zero", "mean", "scale", "patch"] },
  mlp: { point: "hook_mlp_out", hasPosition: true, ops: ["zero", "mean", "scale", "patch"] },
  stream: { point: "hook_resid_post", hasPosition: true, ops: ["steer", "patch", "zero", "mean", "scale"] },
  softmax: { point: "attn.hook_attn_scores", hasHead: true, ops: ["temperature"] },
};

export const OPS = {
  zero: { title: "set to zero" },
  mean: { title: "set to its mean over the text" },
  scale: { title: "multiply by", value: 0.5, low: -2, high: 3 },
  patch: { title: "take from a second text", needsSource: true },
  steer: { title: "steer towards a second text", value: 4, low: -20, high: 20, needsSource: true },
  temperature: { title: "divide scores by", value: 2, low: 0, high: 5 },
};

const LETTERS = { layer: "l", head: "h", position: "p", value: "x" };
const PARTS = ["encoder", "decoder", "cross"];

/** One change as text in the address, such as zero_head_l1_h3 or scale_mlp_l2_p5_x0.5. */
export function writeChange({ op, place, part, ...rest }) {
  const numbers = Object.entries(LETTERS)
    .filter(([field]) => rest[field] !== null && rest[field] !== undefined)
    .map(([field, letter]) => `${letter}${rest[field]}`);
  return [op, place, ...(part ? [part] : []), ...numbers].join("_");
}

export const writeChanges = (changes) => changes.map(writeChange).join(" ");

function readChange(written) {
  const [op, place, ...rest] = written.split("_");
  const own = Object.hasOwn(PLACES, place) ? PLACES[place] : null;
  if (!own?.ops.includes(op)) return null;
  const change = { op, place, part: "", layer: null, head: own.hasHead ? "all" : null, position: null, value: null };
  if (PARTS.includes(rest[0])) change.part = rest.shift();
  for (const said of rest) {
    const field = Object.keys(LETTERS).find((name) => LETTERS[name] === said[0]);
    const raw = said.slice(1);
    const isAll = raw === "all" && (field === "layer" || (field === "head" && own.hasHead));
    const isNumber = field === "value" ? raw !== "" && Number.isFinite(Number(raw)) : /^-?\d{1,9}$/.test(raw);
    if (!field || (!isAll && !isNumber)) return null;
    if ((field === "head" && !own.hasHead) || (field === "position" && !own.hasPosition)) return null;
    change[field] = isAll ? "all" : Number(raw);
  }
  const needsValue = OPS[op].value !== undefined;
  if (change.layer === null || needsValue !== (change.value !== null)) return null;
  return op === "temperature" && change.value < 0 ? null : change;
}

let last = { key: null, read: null };

/** {changes, dropped}: the changes in the address, and a sentence about each invalid one. */
export function changesOf({ change: raw, change_source: source }) {
  const key = `${source === ""} ${raw}`;
  if (last.key !== key) last = { key, read: readAll(raw, source) };
  return last.read;
}

function readAll(raw, source) {
  const [changes, dropped] = [[], []];
  for (const written of raw.split(/\s+/).filter(Boolean)) {
    const change = readChange(written);
    if (!change) dropped.push(`“${written}” in the address is not a known change and is left out.`);
    else if (OPS[change.op].needsSource && source === "") {
      dropped.push(`“${written}” in the address needs a second text: it is left out.`);
    } else if (changes.length < MOST_CHANGES) changes.push(change);
    else if (changes.length === MOST_CHANGES) {
      dropped.push(`A request accepts ${MOST_CHANGES} changes; the other changes are left out.`);
      break;
    }
  }
  return { changes, dropped };
}

export function interventionsOf(selection, capabilities) {
  return changesOf(selection).changes.map((change) => interventionOf(change, selection, capabilities));
}

function interventionOf(change, selection, { kind, attention }) {
  const { op, place, layer, head, position, value } = change;
  const isPair = kind === "encoder-decoder";
  const part = change.part || attention.parts[0];
  const stack = isPair ? `${part === "encoder" ? "encoder" : "decoder"}.` : "";
  const { point, hasHead } = PLACES[place];
  const own = isPair && part === "cross" ? point.replace(/^attn/, "cross_attn") : point;
  return {
    point: stack + own,
    layer,
    ...(hasHead && head !== "all" ? { head } : {}),
    ...(position === null ? {} : { positions: position }),
    ...operationOf({ op, value }, selection, (text) =>
      stack === "decoder." ? { input: selection.text, decoder_input: text } : { input: text }),
  };
}

/** The fields of an intervention; reads(text): the input of a pass over a second text. */
function operationOf({ op, value }, { text, decoder, change_source: source, change_away: away }, reads) {
  if (op === "patch") return { op, from: reads(source) };
  if (op === "steer") {
    const own = "decoder_input" in reads(source) ? decoder : text;
    const end = { positions: -1 };
    return { op: "add", times: value, from: { ...reads(source), ...end }, minus: { ...reads(away || own), ...end } };
  }
  return value === null ? { op } : { op, value };
}

export function sayChange({ op, place, part, layer, head, position, value }) {
  const ofLayer = layer === "all" ? "of every layer" : `of layer ${layer}`;
  const heads = head === "all" ? "all heads" : `head ${head}`;
  const what = {
    head: `${heads} ${ofLayer}`,
    mlp: `MLP ${ofLayer}`,
    stream: `residual stream ${layer === "all" ? "after every layer" : `after layer ${layer}`}`,
    softmax: `attention temperature, ${heads} ${ofLayer}`,
  }[place];
  const where = position === null ? "" : `, position ${position}`;
  const how = { zero: "zero", mean: "mean", scale: `× ${value}`, patch: "from the second text", steer: `steered, × ${value}`,
    temperature: `scores / ${value}` }[op];
  return `${part ? `${part}: ` : ""}${what}${where}: ${how}`;
}
