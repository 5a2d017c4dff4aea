// How well the text itself was predicted: every token by the chance it had, and the text's perplexity.
import { useJson } from "../../core/fetching.js";
import { html, useMemo } from "../../core/html.js";
import { clamp, useTokens } from "../../core/model.js";
import { format } from "../../core/numbers.js";
import { select, useSelection } from "../../core/state.js";
import { Answer } from "../../parts/problem.js";
import { Tokens } from "../../parts/tokens.js";
import { CopyMenu } from "../../parts/tools.js";

export function TextScore() {
  const { text, query } = useSelection();
  const body = useMemo(() => ({ prompt: text, max_tokens: 0, echo: true, logprobs: 0 }), [text]);
  const answer = useJson("v1/completions", body);
  const { tokens } = useTokens(text); // decoded with the text around them
  const logprobs = answer.data?.choices[0].logprobs;
  const names = !answer.isStale && tokens.length === logprobs?.tokens.length ? tokens : logprobs?.tokens;
  return html`<section class="card text-score">
    <header><h2>The text, as the model expected it</h2><${CopyMenu} route="v1/completions" body=${body} /></header>
    <${Answer} answer=${answer}>${() => html`<${Score} tokens=${names} values=${logprobs.token_logprobs} query=${query} />`}<//>
  </section>`;
}

function Score({ tokens, values, query }) {
  const scored = values.filter((value) => value !== null);
  const mean = scored.reduce((sum, value) => sum + value, 0) / Math.max(scored.length, 1);
  const chances = useMemo(() => values.map((value) => (value === null ? NaN : Math.exp(value))), [values]);
  const perplexity = html`<b class="number">${format(Math.exp(-mean))}</b>`;
  return html`<p>
      ${scored.length > 0 && html`Perplexity of the text ${perplexity}: a mean surprise of${" "}
        ${format(-mean)} nats per token. `}
      <span class="hint">The deeper the colour, the likelier the token was (temperature 1). Click one to see what else
        could have stood there.</span></p>
    <${Tokens} tokens=${tokens} weights=${chances} query=${clamp(query, tokens.length)}
      label="Tokens by the probability they had" onPick=${(position) => select({ query: Math.max(0, position - 1) })} />`;
}
