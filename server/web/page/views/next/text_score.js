// The model's prediction of the text itself: the probability of every token, and the text's perplexity.
import { OTHER, sidesOfRequest, useDifferenceName } from "../../core/compare.js";
import { useJson } from "../../core/fetching.js";
import { html, useMemo } from "../../core/html.js";
import { clamp, inputOf, useCapabilities, useTokens } from "../../core/model.js";
import { format, sizeOf, sum } from "../../core/numbers.js";
import { select, useSelection } from "../../core/state.js";
import { Answer } from "../../parts/problem.js";
import { Tokens } from "../../parts/tokens.js";
import { Card } from "../../parts/tools.js";

export function TextScore() {
  const selection = useSelection();
  const { text, query } = selection;
  const { own, other } = sidesOfRequest(inputOf(selection, useCapabilities()));
  const [answer, first] = [useScore(own), useScore(other)];
  const body = other ? { ...bodyOf(own), [OTHER]: bodyOf(other) } : bodyOf(own);
  const difference = useDifferenceName(": ");
  const { tokens } = useTokens(text); // decoded with the text around them
  const logprobs = answer.data?.choices[0].logprobs;
  const names = !answer.isStale && tokens.length === logprobs?.tokens.length ? tokens : logprobs?.tokens;
  return html`<${Card} class="text-score" title=${`The text, as the model expected it${difference}`}
      copy=${{ route: "v1/completions", body }}>
    <${Answer} answer=${other && !first.data ? first : answer}>${() => other
      ? html`<${Changed} tokens=${names} values=${[first, answer].map(({ data }) => data.choices[0].logprobs.token_logprobs)}
          query=${query} />`
      : html`<${Score} tokens=${names} values=${logprobs.token_logprobs} query=${query} />`}<//>
  <//>`;
}

const bodyOf = ({ input: prompt, ...rest }) => ({ prompt, ...rest, max_tokens: 0, echo: true, logprobs: 0 });

const useScore = (given) => useJson(given ? "v1/completions" : null, given && bodyOf(given));

const Scored = ({ tokens, query, ...more }) => html`<${Tokens} tokens=${tokens} query=${clamp(query, tokens.length)}
  onPick=${(position) => select({ query: Math.max(0, position - 1) })} ...${more} />`;

/** In nats; none for texts of different lengths. */
function Changed({ tokens, values: [before, after], query }) {
  const apart = useMemo(() => after.map((value, i) => (value === null ? NaN : value - before[i])), [before, after]);
  const [first, second] = [before, after].map(perplexityOf);
  const said = html`<p>Perplexity ${format(first)} → <b class="number">${format(second)}</b>. ${before.length === after.length &&
    html`<span class="hint">The token became${" "}
      <b class="positive">likelier</b> or <b class="negative">less likely</b>, in nats.</span>`}</p>`;
  if (before.length !== after.length) return said;
  return html`${said}<${Scored} tokens=${tokens} query=${query} weights=${apart} isSigned largest=${sizeOf(apart)} write=${format}
    label="Tokens by how much likelier they became" />`;
}

function perplexityOf(values) {
  const scored = values.filter((value) => value !== null);
  return Math.exp(-sum(scored) / Math.max(scored.length, 1));
}

function Score({ tokens, values, query }) {
  const scored = values.filter((value) => value !== null);
  const perplexity = perplexityOf(values);
  const chances = useMemo(() => values.map((value) => (value === null ? NaN : Math.exp(value))), [values]);
  return html`<p>
      ${scored.length > 0 && html`Perplexity of the text <b class="number">${format(perplexity)}</b>: a mean surprise of${" "}
        ${format(Math.log(perplexity))} nats per token. `}
      <span class="hint">The deeper the colour, the likelier the token was (temperature 1). Click one to see its alternatives.</span></p>
    <${Scored} tokens=${tokens} query=${query} weights=${chances} label="Tokens by the probability they had" />`;
}
