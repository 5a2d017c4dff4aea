// The six scores of a head: meaning, formula and first source of each.
import { html } from "../../core/html.js";
import { Term } from "../../parts/term.js";

const TOO_SHORT = "it is one token long";

/** `most`: the largest possible value (null: it depends on the text); `lack`: why a text may give no value. */
export const MEASURES = {
  previous_token: {
    title: "Previous token",
    most: 1,
    unit: "weight",
    lack: TOO_SHORT,
    about:
      "The weight of each token on the token before it. Such heads give every token information about its neighbour; " +
      "induction is built on them.",
    formula: html`mean over <i>q</i> ≥ 1 of <i>A</i>[<b class="query">q</b>, <b class="key">q − 1</b>]`,
    source: ["Clark et al. 2019", "https://arxiv.org/abs/1906.04341"],
  },
  induction: {
    title: "Induction",
    most: 1,
    unit: "weight",
    lack: "no token of it comes twice",
    about:
      html`<${Term} of="induction">Induction<//>: how much a token that was seen before looks at its previous successor:
        “A B … A” finds B, and can copy it.`,
    formula: html`mean over repeated <i>q</i> of <i>A</i>[<b class="query">q</b>, <b class="key">p + 1</b>],
      token <i>p</i> = token <i>q</i>`,
    source: ["Olsson et al. 2022", "https://arxiv.org/abs/2209.11895"],
  },
  self: {
    title: "Self",
    most: 1,
    unit: "weight",
    about: "Weight of each token on itself: the head changes a word from its own content.",
    formula: html`mean over <i>q</i> of <i>A</i>[<b class="query">q</b>, <b class="key">q</b>]`,
    source: ["Kovaleva et al. 2019", "https://arxiv.org/abs/1908.08593"],
  },
  first_token: {
    title: "First token",
    most: 1,
    unit: "weight",
    lack: TOO_SHORT,
    about: html`The weight on the first token, usually an <${Term} of="attention sink" />: typical of a head without a match.`,
    formula: html`mean over <i>q</i> ≥ 1 of <i>A</i>[<b class="query">q</b>, <b class="key">0</b>]`,
    source: ["Xiao et al. 2023", "https://arxiv.org/abs/2309.17453"],
  },
  entropy: {
    title: "Entropy",
    most: null,
    unit: "nats",
    about: html`How widely the attention of a token is spread, in <${Term} of="nats" />: 0 is a single key, ln n is n equal weights.`,
    formula: html`mean over <i>q</i> of −Σ<sub>k</sub> <i>A</i>[<b class="query">q</b>, <b class="key">k</b>]
      ln <i>A</i>[<b class="query">q</b>, <b class="key">k</b>]`,
    source: ["Clark et al. 2019", "https://arxiv.org/abs/1906.04341"],
  },
  mean_distance: {
    title: "Mean distance",
    most: null,
    unit: "tokens",
    about: "The mean distance between a token and the tokens that it attends to.",
    formula: html`mean over <i>q</i> of Σ<sub>k</sub> <i>A</i>[<b class="query">q</b>, <b class="key">k</b>] ·
      |<i>q</i> − <i>k</i>|`,
    source: ["Vig and Belinkov 2019", "https://arxiv.org/abs/1906.04284"],
  },
};

export const measureNamed = (name, other) => (name in MEASURES ? name : other);

/** By layer; a score without a value is NaN. */
export function headsOf(entry) {
  const { data } = entry.arrays.scores;
  const count = entry.measures.length;
  const found = [];
  entry.layers.forEach((layer, row) =>
    entry.heads.forEach((head, column) => {
      const start = (row * entry.heads.length + column) * count;
      found.push({ layer, head, scores: Object.fromEntries(entry.measures.map((name, i) => [name, data[start + i]])) });
    }),
  );
  return found;
}

export const shortName = ({ layer, head }) => `${layer}.${head}`;
