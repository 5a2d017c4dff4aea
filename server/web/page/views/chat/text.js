// Continue a text without a chat template, token by token; inspect each token and replace it.
import { html, useEffect, useState } from "../../core/html.js";
import { counted, format } from "../../core/numbers.js";
import { select, useSelection } from "../../core/state.js";
import { useStore } from "../../core/store.js";
import { textOf } from "../../core/texts.js";
import { Problem } from "../../parts/problem.js";
import { Term } from "../../parts/term.js";
import { CopyMenu } from "../../parts/tools.js";
import { Branches } from "./branches.js";
import { Options, useOptions } from "./options.js";
import { Prose } from "./prose.js";
import { begin, branchNow, choose, fork, grow, idsBefore, stop, story } from "./story.js";
import { TokenCard } from "./token_card.js";

export function ContinuedText() {
  const { text } = useSelection();
  const options = useOptions();
  const written = useStore(story);
  const branch = branchNow(written);
  const [picked, setPicked] = useState(null);
  const [problem, setProblem] = useState(null);
  useEffect(() => setPicked(null), [written.current]);
  const write = async (job) => {
    setProblem(null);
    await job().catch((error) => error.name === "AbortError" || setProblem(error));
  };
  const sides = sidesOf(written, branch);
  const isOpen = picked !== null && branch && picked < branch.tokens.length;
  const close = () => {
    document.querySelector(".prose .picked")?.focus(); // to keep the place in the text
    setPicked(null);
  };
  return html`<div class="write" onKeyDown=${(event) => event.key === "Escape" && isOpen && close()}>
    <p>The model gives every <${Term} of="token" /> of its <${Term} of="vocabulary" /> a probability, and one is drawn; then
      it reads the longer text and repeats this. Click a token to see its alternatives and to continue with one.</p>
    <${PromptCard} text=${text} options=${options} isRunning=${written.isRunning}
      onWrite=${() => write(() => begin(text, options))} />
    <${Problem} error=${problem} isAction />
    ${branch && html`<div class=${isOpen ? "write-pair" : ""}>
      <${Columns} written=${written} branch=${branch}><section class="card story"
        aria-busy=${written.isRunning && branch.tokens.length === 0}>
        ${sides && html`<h2>${branch.interventions ? "After" : "Before"}</h2>`}
        <${Prose} branch=${branch} picked=${picked} onPick=${setPicked} />
        <${Ending} branch=${branch} options=${options}
          onWrite=${() => write(() => grow(branch.id, options))} onTake=${() => write(() => takeOver(branch))} />
      </section><//>
      ${isOpen && html`<${TokenCard} key=${`${branch.id} ${picked}`} branch=${branch}
        place=${picked} options=${options}
        onForce=${(forced) => write(() => fork(branch, picked, forced, options))} onClose=${close} />`}
    </div>`}
    ${written.branches.length > 1 && html`<${Branches} written=${written} />`}
  </div>`;
}

/** {before, after}: the branches generated together with a branch, without and with changes; null without changes. */
function sidesOf({ branches }, current) {
  const roots = branches.filter((branch) => branch.parent === null && branch.begun === current?.begun);
  return roots.length === 2 ? { before: roots[0], after: roots[1] } : null;
}

/** The open branch, and next to it the text of the other side. */
function Columns({ written, branch, children }) {
  const sides = sidesOf(written, branch);
  if (!sides) return children;
  const other = branch.interventions ? sides.before : sides.after;
  const card = html`<section class="card story" key="other"><h2>${branch.interventions ? "Before" : "After"}</h2>
    <${Prose} branch=${other} picked=${null} onPick=${() => choose(other.id)} />
    <p class="hint">A click opens this side.</p></section>`;
  return html`<div class="columns">${branch.interventions ? [card, children] : [children, card]}</div>`;
}

function PromptCard({ text, options, isRunning, onWrite }) {
  const onKeyDown = (event) => {
    if (event.key !== "Enter" || event.shiftKey || text === "") return;
    event.preventDefault();
    onWrite();
  };
  const label = options.isPair ? "Text (the encoder reads it)" : "Prompt";
  return html`<section class="card" aria-label="Prompt">
    <label class="text-field"><span>${label}</span>
      <textarea id="prompt" rows="3" spellcheck=${false} value=${text} onKeyDown=${onKeyDown}
        onInput=${(event) => select({ text: event.target.value, query: -1, key: null })}></textarea></label>
    <${Options} />
    <div class="toolbar write-buttons">
      <button type="button" class="primary" id="write" disabled=${text === ""} onClick=${onWrite}>Write</button>
      <button type="button" id="stop" disabled=${!isRunning} onClick=${stop}>Stop</button>
      <span class="hint wide">Enter writes, Shift+Enter breaks the line</span>
      <span class="grow"></span>
      <${CopyMenu} ...${requestOf(text, options)} />
    </div>
  </section>`;
}

/** {route, body} of one request with the same result. */
function requestOf(text, { sampling, seed, maxTokens, interventions }) {
  const changes = interventions.length ? { interventions } : {};
  const rest = { ...changes, ...sampling, ...(seed === null ? {} : { seed }), max_tokens: maxTokens };
  return { route: "v1/completions", body: { prompt: text, ...rest, logprobs: 5 } };
}

const ENDS = {
  stop: () => "The model ended its text.",
  length: ({ maxTokens }) => `Stopped after ${counted(maxTokens, "token")}, as asked.`,
  context: ({ maxModelLen }) => `The context is full: this model reads ${counted(maxModelLen, "token")} at most.`,
  stopped: () => "Stopped by you.",
  error: () => "The answer broke off here.",
};

/** Make the whole branch the shared text. */
async function takeOver(branch) {
  const { text } = await textOf(idsBefore(branch, branch.tokens.length));
  select({ text, query: -1, key: null }, { remember: true });
}

/** The end of the branch, its speed, and the possible continuations. */
function Ending({ branch, options, onWrite, onTake }) {
  const { end, speed, tokens, seed } = branch;
  const said = end ? (ENDS[end.reason]?.(options) ?? `Ended: ${end.reason}.`) : "Writing…";
  const rate = speed?.perSecond ? `, ${format(speed.perSecond, 3)} tokens/s` : "";
  const pace = speed ? `, first token after ${format(speed.firstMs, 3)} ms${rate}` : "";
  return html`<div class="ending">
    ${end?.error && html`<${Problem} error=${end.error} isAction />`}
    <p class="hint"><span role="status">${said}</span> ${counted(tokens.length, "token")} in all${pace}${
      seed === null ? "" : `, seed ${seed}`}${seed === null || options.seed !== null ? "" : html`${" "}
      (drawn; <button type="button" class="plain" onClick=${() => select({ write_seed: String(seed) })}>keep
        it</button>)`}.</p>
    ${end && html`<div class="toolbar">
      <button type="button" id="go-on" disabled=${end.reason === "context"}
        onClick=${onWrite}>${end.error ? "Try to go on" : "Go on"}</button>
      ${!branch.prompt.isPair &&
      html`<button type="button" class="quiet" onClick=${onTake}
        title="To edit it, or to look at it in the other views">Use the whole text as the prompt</button>`}
    </div>`}
  </div>`;
}
