// One token: the alternatives, their probabilities, and links to views that analyse it.
import { useAnswer, useJson } from "../../core/fetching.js";
import { askJson } from "../../core/api.js";
import { html, useMemo, useState } from "../../core/html.js";
import { percent } from "../../core/numbers.js";
import { select } from "../../core/state.js";
import { countOf, piecesOf, textOf } from "../../core/texts.js";
import { Bars } from "../../parts/bars.js";
import { Answer, Problem } from "../../parts/problem.js";
import { TokenName } from "../../parts/token_name.js";
import { CopyMenu } from "../../parts/tools.js";
import { isForced } from "./prose.js";
import { NEUTRAL, contextOf } from "./requests.js";

const SHOWN = 12;
const PENALTIES = ["repetition_penalty", "presence_penalty", "frequency_penalty"];
const VIEWS = [["attention", "Attention"], ["why", "Why"], ["moves", "How a word moves", { moves_as: "amounts" }], ["lens", "Lens"],
  ["next", "Next token"]];
const CAPTION =
  "Click a token to continue with it. p: the probability at temperature 1; " +
  "drawn: the probability after the temperature and the filters of the settings (top-k, min-p, top-p).";

/** branch: {prompt, pieces, ids, forced, interventions}; onForce([{id, text, logprob}]): continue with these tokens in its place. */
export function TokenCard({ branch, place, sampling, onForce, onClose }) {
  const { prompt, pieces, ids, forced, interventions } = branch;
  const [text, logprob] = pieces[place];
  const { temperature, top_p: topP, top_k: topK, min_p: minP } = sampling;
  const isPenalized = PENALTIES.some((name) => sampling[name] !== NEUTRAL[name]);
  const body = {
    ...contextOf(prompt, ids.slice(0, place), "input", interventions),
    temperatures: [1, temperature],
    top_p: topP,
    top_k: topK,
    ...(minP > 0 ? { min_p: minP } : {}),
    num_tokens: SHOWN,
  };
  const answer = useJson("v1/next", body);
  return html`<aside class="card token-card" aria-label="The chosen token">
    <header><h2>Instead of <code class="token"><${TokenName} token=${text} /></code></h2>
      <${CopyMenu} route="v1/next" body=${body} />
      <button class="quiet" aria-label="Close" onClick=${onClose}>✕</button></header>
    ${logprob !== null && html`<p>Its probability was <b>${percent(Math.exp(logprob))}</b>${
      isForced(forced, place) ? "; it was chosen by you." : "."}</p>`}
    <${Answer} answer=${answer} minHeight="22rem">${({ data: [{ temperatures: [own, drawn] }] }) => html`<${Bars}
      rows=${own.tokens.map((one, rank) => {
        const kept = drawn.tokens[rank].kept_probability;
        return {
          key: one.token_id,
          name: html`<${TokenName} token=${one.token} />`,
          value: one.probability,
          note: kept > 0 ? percent(kept) : "cut",
          isOn: one.token_id === ids[place],
        };
      })}
      columns=${["token", "p", `drawn, T ${temperature}${isPenalized ? ", before penalties" : ""}`]} write=${percent}
      largest=${1} isRanked caption=${CAPTION}
      onPick=${(rank) => {
        const { token_id: id, token, probability } = own.tokens[rank];
        onForce([{ id, text: token, logprob: Math.log(probability) }]);
      }} />`}<//>
    <${Other} onForce=${onForce} />
    <${LookAt} prompt=${prompt} ids=${ids} place=${place} />
  </aside>`;
}

function Other({ onForce }) {
  const [text, setText] = useState("");
  const [problem, setProblem] = useState(null);
  const force = async (event) => {
    event.preventDefault();
    if (text === "") return;
    try {
      const { ids, tokens } = await piecesOf(text);
      onForce(ids.map((id, i) => ({ id, text: tokens[i], logprob: null })));
    } catch (error) {
      setProblem(error);
    }
  };
  return html`<form class="toolbar" onSubmit=${force}>
    <label class="text-field"><span class="unseen">Other text</span>
      <input value=${text} placeholder="or anything else, such as “ dragon”" spellcheck=${false}
        onInput=${(event) => setText(event.target.value)} /></label>
    <button type="submit" disabled=${text === ""}>Force</button>
  </form><${Problem} error=${problem} isAction />`;
}

/** At the row that predicted this token: the position before it. */
function LookAt({ prompt, ids, place }) {
  const request = useMemo(() => ({ prompt, ids: [...prompt.ids, ...ids], at: prompt.ids.length + place }), []);
  const { data, error } = useAnswer(reread, "tokenize", request);
  return html`<fieldset class="look-at"><legend>Look at this choice in</legend>
    ${VIEWS.map(([view, title, more]) => html`<button disabled=${!data}
      onClick=${() => select({ view, ...more, ...data.selection })}>${title}</button>`)}
  </fieldset>
  ${data && !data.isSame &&
  html`<p class="hint">The views split this text into other tokens than the model generated, and show the row next to it.</p>`}
  <${Problem} error=${error} />`;
}

/** The text of all ids as a selection for views, and the row that predicted the token at that place. */
async function reread(_, { prompt, ids, at }) {
  const { text, isSame } = await textOf(ids);
  if (prompt.isPair) {
    const { data } = await askJson("v1/next", { input: prompt.text, decoder_input: text, num_tokens: 0 });
    const same = String(data[0].token_ids) === String(ids);
    return { isSame: same, selection: { text: prompt.text, decoder: text, part: "decoder", query: at - 1, key: 0 } };
  }
  const query = isSame ? at - 1 : (await countOf((await textOf(ids.slice(0, at))).text)) - 1;
  return { isSame, selection: { text, query: Math.max(0, query), key: 0 } };
}
