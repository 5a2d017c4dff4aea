// An answer as tokens with their probabilities; the alternatives of each, and answers that continue with another.
import { askJson } from "../../core/api.js";
import { useAnswer } from "../../core/fetching.js";
import { html, useEffect, useMemo, useRef, useState } from "../../core/html.js";
import { percent } from "../../core/numbers.js";
import { shownToken } from "../../core/model.js";
import { Answer, Problem } from "../../parts/problem.js";
import { hideTooltip, showTooltip } from "../../parts/tooltip.js";
import { Prose } from "./prose.js";
import { contextOf, idsOf, readPrompt } from "./requests.js";
import { TokenCard } from "./token_card.js";
import { changesOf, pathTo } from "./tree.js";

const ALTERNATIVES = 5;
const POINTED_MS = 120; // until alternatives are requested

/** Without special tokens of the template at the end, such as <|im_end|>, which are not in the text. */
function withoutEnd(pieces, text) {
  const isSpecial = ([name]) => /^<[^\s>]*>$|^\[\/?[A-Z]+\]$/.test(name) && !text.endsWith(name);
  return pieces.slice(0, pieces.findLastIndex((piece) => !isSpecial(piece)) + 1);
}

async function readPieces(_, { request, turn, interventions }, options) {
  const prompt = await readPrompt("", request, options);
  const ids = await idsOf(turn, request.model, options); // another model has other tokens
  const body = { ...contextOf(prompt, ids, "prompt", interventions), echo: true, max_tokens: 0, logprobs: 0 };
  const { choices: [{ logprobs }] } = await askJson("v1/completions", body, options);
  return { pieces: ids.map((_id, i) => ["tokens", "token_logprobs"].map((name) => logprobs[name][prompt.ids.length + i])), ids };
}

/** onFork(place, [{id, text, logprob}], ids): continue after these ids and tokens. */
export function XRay({ turn, shown = "", more, hasKey, onFork }) {
  const { chat, model, isPair, sampling } = more;
  const interventions = changesOf(turn);
  const request = useMemo(() => {
    const { kind, system, settings } = chat;
    return { chat: { kind, system, settings }, turns: pathTo(chat, turn.parent), model, isPair };
  }, [turn.id, model]);
  const prompt = useAnswer(readPrompt, "tokenize", request);
  const isKnown = turn.pieces && turn.model === model;
  const answer = useAnswer(readPieces, isKnown ? null : "tokenize", useMemo(() => ({ request, turn, interventions }), [turn, model]));
  const chips = ({ pieces, ids }) => html`<${Chips} shown=${shown}
    branch=${{ prompt: prompt.data, pieces: withoutEnd(pieces, turn.text), ids, forced: turn.forced, interventions }}
    sampling=${sampling} hasKey=${hasKey} onFork=${onFork} />`;
  return html`<div class="xray"><${Problem} error=${prompt.error} />
    ${isKnown ? chips(turn) : html`<${Answer} answer=${answer}>${chips}<//>`}</div>`;
}

function Chips({ branch, shown, sampling, hasKey, onFork }) {
  const [picked, setPicked] = useState(null);
  const box = useRef(null);
  const { pieces, forced, ids } = branch;
  const isOpen = picked !== null && picked < pieces.length && branch.prompt;
  const pointed = usePointed(box, branch, isOpen);
  const close = () => {
    box.current.querySelector(".picked")?.focus(); // to keep the place in the text
    setPicked(null);
  };
  const onKeyDown = (event) => {
    if (event.key !== "Escape" || !isOpen) return;
    event.stopPropagation(); // it would close the settings
    close();
  };
  return html`<div ref=${box} onKeyDown=${onKeyDown} ...${pointed}>
    <${Prose} pieces=${pieces} forced=${forced} shown=${shown} picked=${picked} onPick=${setPicked} hasKey=${hasKey} />
    ${isOpen && html`<${TokenCard} key=${picked} branch=${branch} place=${picked} sampling=${sampling}
      onForce=${(tokens) => onFork(picked, tokens, ids.slice(0, picked))} onClose=${close} />`}
  </div>`;
}

/** The likeliest alternatives of the token that is pointed at or focused; isOff: none are shown. */
function usePointed(box, { prompt, ids, interventions }, isOff) {
  const now = useRef({ timer: null, abort: new AbortController() }).current;
  const leave = () => {
    clearTimeout(now.timer);
    now.abort.abort();
    hideTooltip(box);
  };
  useEffect(() => leave, [isOff]);
  const point = ({ target }) => {
    const chip = target.closest?.(".prose .written");
    leave();
    if (!chip || !prompt || isOff) return;
    const place = Array.from(box.current.querySelectorAll(".prose .written")).indexOf(chip);
    const { signal } = (now.abort = new AbortController());
    now.timer = setTimeout(async () => {
      const body = { ...contextOf(prompt, ids.slice(0, place), "input", interventions), num_tokens: ALTERNATIVES };
      const answer = await askJson("v1/next", body, { signal, isKept: false }).catch(() => null);
      if (!answer || signal.aborted) return;
      const at = chip.getBoundingClientRect();
      const said = answer.data[0].temperatures[0].tokens.map(({ token, probability }) => `${shownToken(token)} ${percent(probability)}`);
      showTooltip(box, said.join(" · "), { x: at.left, y: at.top });
    }, POINTED_MS);
  };
  return { onPointerOver: point, onPointerLeave: leave, onFocusIn: point };
}
