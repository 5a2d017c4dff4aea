// What the tour tells about the model that is served, found by asking it: no words without a number behind them.
import { json } from "../../core/fetching.js";

/** Says something twice, so that a model which looks back can tell how it goes on. */
export const STORY = "The old fox saw the young fox, and the young fox saw the old";

/**
 * {before, last, key, asker, asked, back, push, rise}, each null where this model has no such thing: before {layer, head,
 * score}, the head that looks at the token before the most; last, the last position; key, the position after the last
 * token's earlier copy; asker and asked, their tokens; back {layer, head, weight}, the head that looks there the most;
 * push, what it adds to the logit of `asked`; rise {best, chances}, the best guess and the chance of `asked`, state by state.
 */
export async function findFacts(capabilities) {
  const facts = { before: null, last: null, key: null, asker: null, asked: null, back: null, push: null, rise: null };
  facts.before = await orNull(async () => strongest(await json("v1/heads", {})));
  if (capabilities.kind !== "decoder") return facts;
  const { tokens: ids, token_strs: tokens } = await json("tokenize", { prompt: STORY, return_token_strs: true });
  facts.last = ids.length - 1;
  const copy = ids.lastIndexOf(ids[facts.last], facts.last - 1);
  if (copy < 0) return facts; // this tokenizer cuts the two otherwise
  facts.key = copy + 1;
  [facts.asker, facts.asked] = [tokens[facts.last].trim(), tokens[facts.key].trim()];
  facts.back = await orNull(() => headThatLooks(facts));
  const target = ids[facts.key];
  if (facts.back) facts.push = await orNull(() => pushOf(facts, target));
  facts.rise = await orNull(() => riseOf(target));
  return facts;
}

/** A fact that cannot be had is left out of the words. */
async function orNull(find) {
  try {
    return await find();
  } catch {
    return null;
  }
}

const strongest = ({ data }) => data[0].strongest.previous_token[0] ?? null;

async function headThatLooks({ key }) {
  const body = { input: STORY, layers: "all", heads: "all", query_positions: -1, key_positions: key };
  const { data } = await json("v1/attention", body);
  let best = { weight: 0 };
  data[0].attention.forEach((heads, layer) =>
    heads.forEach(([[weight]], head) => {
      if (weight > best.weight) best = { layer: data[0].layers[layer], head: data[0].heads[head], weight };
    }),
  );
  return best.weight > 0.3 ? best : null;
}

async function pushOf({ back, key }, target) {
  const body = { input: STORY, layers: back.layer, heads: back.head, query_positions: -1, key_positions: key, target };
  const { data } = await json("v1/contributions", body);
  return data[0].arrays.attributions.data[0][0][0][0];
}

async function riseOf(target) {
  const { data } = await json("v1/lens", { input: STORY, positions: -1, top_k: 1, target });
  return {
    best: data[0].top_tokens.map(([[token]]) => token.trim()),
    chances: data[0].arrays.target_probabilities.data.map(([chance]) => chance),
  };
}
