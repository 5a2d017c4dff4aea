// X-ray: an answer as tokens with their probabilities; the alternatives of each, and answers that continue with another.
import { askJson } from "../../core/api.js";
import { useAnswer } from "../../core/fetching.js";
import { html, useEffect, useMemo, useRef, useState } from "../../core/html.js";
import { percent } from "../../core/numbers.js";
import { shownToken } from "../../core/model.js";
import { Answer } from "../../parts/problem.js";
import { hideTooltip, showTooltip } from "../../parts/tooltip.js";
import { promptOf } from "./answer.js";
import { Prose } from "./prose.js";
import { TokenCard } from "./token_card.js";
import { pathTo } from "./tree.js";

const ALTERNATIVES = 5;
const POINTED_MS = 120; // until alternatives are requested

/**
 * {prompt: {ids, shown, isPair}, tokens: [{id, text, logprob, isForced}]} of a turn: its tokens as they were generated,
 * with the probabilities that the model gives them now, all from one pass. Special tokens at its end are left out.
 */
async function readTokens(_, { chat, before, turn, model, interventions }, { signal }) {
  const { tokens: prompt } = await askJson("tokenize", promptOf(chat, before), { signal });
  const isOwn = turn.ids && turn.model === model; // another model has other tokens
  const own = isOwn ? turn.ids : (await askJson("tokenize", { prompt: turn.text, add_special_tokens: false }, { signal })).tokens;
  const changes = interventions.length ? { interventions } : {};
  const body = { prompt: [...prompt, ...own], echo: true, max_tokens: 0, logprobs: 0, ...changes };
  const { choices: [{ logprobs }] } = await askJson("v1/completions", body, { signal });
  const [first, count] = turn.forced ?? [0, 0];
  const tokens = own.map((id, i) => ({
    id,
    text: logprobs.tokens[prompt.length + i],
    logprob: logprobs.token_logprobs[prompt.length + i],
    isForced: i >= first && i < first + count,
  }));
  while (tokens.length && /^<[^\s>]*>$|^\[\/?[A-Z]+\]$/.test(tokens.at(-1).text) && !turn.text.endsWith(tokens.at(-1).text)) tokens.pop();
  return { prompt: { ids: prompt, shown: "", text: "", isPair: false }, tokens };
}

/** onFork(place, [{id, text}], ids): continue after these ids, which are before that place, and these tokens. */
export function XRay({ chat, turn, model, interventions, sampling, hasKey, onFork }) {
  const request = useMemo(() => {
    const { system, settings } = chat;
    return { chat: { system, settings }, before: pathTo(chat, turn.id).slice(0, -1), turn, model, interventions };
  }, [turn, model]);
  const answer = useAnswer(readTokens, "tokenize", request);
  return html`<div class="xray"><${Answer} answer=${answer}>${({ prompt, tokens }) =>
    html`<${Chips} branch=${{ id: turn.id, prompt, tokens, interventions: interventions.length ? interventions : null }}
      sampling=${sampling} hasKey=${hasKey} onFork=${onFork} />`}<//></div>`;
}

function Chips({ branch, sampling, hasKey, onFork }) {
  const [picked, setPicked] = useState(null);
  const box = useRef(null);
  usePointed(box, branch);
  const isOpen = picked !== null && picked < branch.tokens.length;
  const close = () => {
    box.current.querySelector(".picked")?.focus(); // to keep the place in the text
    setPicked(null);
  };
  const onKeyDown = (event) => {
    if (event.key !== "Escape" || !isOpen) return;
    event.stopPropagation(); // it would close the settings
    close();
  };
  return html`<div ref=${box} onKeyDown=${onKeyDown}>
    <${Prose} branch=${branch} picked=${picked} onPick=${setPicked} hasKey=${hasKey} />
    ${isOpen && html`<${TokenCard} key=${picked} branch=${branch} place=${picked} options=${{ sampling }}
      onForce=${(forced) => onFork(picked, forced, branch.tokens.slice(0, picked).map(({ id }) => id))}
      onClose=${close} />`}
  </div>`;
}

/** Show the likeliest alternatives of the token that is pointed at or focused. */
function usePointed(box, { prompt, tokens, interventions }) {
  useEffect(() => {
    let timer = null;
    let abort = new AbortController();
    const leave = () => {
      clearTimeout(timer);
      abort.abort();
      hideTooltip(box);
    };
    const point = (event) => {
      const chip = event.target.closest?.(".written");
      leave();
      const place = chip ? Array.from(box.current.querySelectorAll(".prose .written")).indexOf(chip) : -1;
      if (place < 0) return;
      const { signal } = (abort = new AbortController());
      timer = setTimeout(async () => {
        const input = [...prompt.ids, ...tokens.slice(0, place).map(({ id }) => id)];
        const body = { input, num_tokens: ALTERNATIVES, ...(interventions ? { interventions } : {}) };
        const answer = await askJson("v1/next", body, { signal, isKept: false }).catch(() => null);
        if (!answer || signal.aborted) return;
        const at = chip.getBoundingClientRect();
        const { tokens: likeliest } = answer.data[0].temperatures[0];
        const said = likeliest.map(({ token, probability }) => `${shownToken(token)} ${percent(probability)}`);
        showTooltip(box, said.join(" · "), { x: at.left, y: at.top });
      }, POINTED_MS);
    };
    const element = box.current;
    element.addEventListener("pointerover", point);
    element.addEventListener("pointerleave", leave);
    element.addEventListener("focusin", point);
    return () => {
      leave();
      element.removeEventListener("pointerover", point);
      element.removeEventListener("pointerleave", leave);
      element.removeEventListener("focusin", point);
    };
  }, [prompt, tokens]);
}
