// One word followed through the layers: its rank among all words, and its probability.
import { sideNames } from "../../core/compare.js";
import { useLook } from "../../core/fetching.js";
import { html } from "../../core/html.js";
import { shownToken, useCapabilities } from "../../core/model.js";
import { grouped, percent } from "../../core/numbers.js";
import { select, useSelection } from "../../core/state.js";
import { SavedLines } from "../../parts/lines.js";
import { Answer } from "../../parts/problem.js";
import { TargetField, targetOf } from "../../parts/target_field.js";
import { Card } from "../../parts/tools.js";
import { cellOf } from "./grid.js";
import { stateName, stateTitle } from "./names.js";

export function Rank({ entry, query, state, given }) {
  const { lens_target: typed } = useSelection();
  const states = entry.layers.length;
  const own = cellOf(entry.before ?? entry, states - 1, entry.positions.indexOf(query));
  const suggestions = own.words.map((token, k) => ({ token, token_id: own.ids[k], probability: own.chances[k] }));
  const body = { ...given, positions: query, top_k: 1, target: targetOf(typed) ?? own.ids[0] };
  const answer = useLook("v1/lens", body);
  const isField = answer.error?.param === "target";
  return html`<${Card} title="One word through the layers" copy=${{ route: "v1/lens", body }}>
    <div class="toolbar"><${TargetField} field="lens_target" typed=${typed} label="Follow" token=${answer.entry?.target}
      empty="its own answer" suggestions=${suggestions} error=${answer.error} /></div>
    <${Answer} answer=${isField ? { ...answer, error: null } : answer} minHeight="20rem">${() =>
      html`<${Curves} found=${answer.entry} word=${shownToken(entry.tokens[query])} state=${state} />`}<//>
  <//>`;
}

function Curves({ found, word, state }) {
  const { vocab_size: numWords } = useCapabilities();
  const selection = useSelection();
  const { target_ranks: { data: ranks } } = (found.after ?? found).arrays;
  const chances = found.arrays.target_probabilities.data;
  const rankTitle = "rank (1 on top, powers of ten)";
  const ranked = found.isDifference
    ? [found.before, found.after].map((one, side) => ({ name: `${sideNames(selection)[side]}: ${rankTitle}`,
        values: one.arrays.target_ranks.data }))
    : [{ name: rankTitle, values: ranks }];
  const points = found.layers.map((layer) => stateName(layer, found.layers.length));
  const best = Array.from(ranks).indexOf(Math.min(...ranks));
  const common = { points, title: "layer", height: 190, selected: state, onPick: (picked) =>
    select({ lens_state: picked }) };
  const atBest = best < ranks.length - 1 && `; first at its best, ${grouped(ranks[best])}, in ${stateTitle(best,
    ranks.length)}`;
  return html`<p class="hint">${found.isDifference && `${sideNames(selection)[1]}: `}After <code>${word}</code>,
    rank ${grouped(ranks[0])} of ${grouped(numWords)} at the
    embedding, ${grouped(ranks.at(-1))} in the end${atBest}. 1 is the likeliest word.</p>
    <div class="columns lens-lines">
      <${SavedLines} ...${common} heading="Rank" name="ranks" only=${ranks} series=${ranked} low=${1} high=${numWords} isLogarithmic
        isInverted write=${grouped} label="Rank of the word by layer" />
      <${SavedLines} ...${common} heading="Probability" name="probabilities" only=${chances} low=${Math.min(0, ...chances)}
        series=${[{ name: found.isDifference ? "change of the probability" : "probability", values: chances }]}
        high=${Math.max(...chances, 0.01)} write=${percent} label="Probability of the word by layer" />
    </div>`;
}
