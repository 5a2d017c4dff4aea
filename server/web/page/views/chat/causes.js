// The words of the conversation that caused a word of an answer, as an estimate, then measured.
import { askJson } from "../../core/api.js";
import { remembered } from "../../core/fetching.js";
import { hasModifier, html, used, useEffect, useRef, useState } from "../../core/html.js";
import { format, largest, percent, sum as total } from "../../core/numbers.js";
import { select } from "../../core/state.js";
import { scrollTo } from "../../parts/picture.js";
import { live } from "./answer.js";
import { promptOf } from "./requests.js";
import { pathTo } from "./tree.js";
import { contentOf, highlight, placesOf, rangeOf, wordsOf } from "./words.js";

const POINTED_MS = 120; // of rest until requests are sent
const LEVELS = [1, 2, 3, 4, 5, -1, -2, -3, -4, -5]; // of the colours for and against a word
const [MEASURED, SAID, AHEAD] = [5, 3, 8]; // words
const RUN = 128; // tokens: passes for words of one run end at the same token, so that they are shared

/** The kept answer of `make(options)`, which callers share. */
const kept = (name, make, options) => remembered(name, ({ signal }) => make({ ...options, signal }), options);

const post = (route, body, { signal, ...more } = {}) => askJson(route, { ...body, ...more }, { signal, isKept: false });

async function scored(prompt, options, changes) {
  const body = { prompt, echo: true, max_tokens: 0, logprobs: 0, ...changes };
  const { text, logprobs } = (await post("v1/completions", body, options)).choices[0];
  return { text, offsets: logprobs.text_offset, logprobs: logprobs.token_logprobs };
}

/** Of a turn that the chosen model has written without changes: its tokens from `first` on, and all words. */
async function read(column, { chat, model }, id, options) {
  const turn = chat.turns.find((one) => one.id === id);
  if (!turn?.ids || turn.model !== model || turn.changes || live.value) return null;
  const name = `causes ${chat.id} ${id} ${turn.text}`;
  const answer = await kept(name, async (own) => {
    const { tokens } = await post("tokenize", promptOf(chat, pathTo(chat, turn.parent)));
    const ids = [...tokens, ...turn.ids];
    return { name, ids, first: tokens.length, ...(await scored(ids, own)) };
  }, options);
  return { answer, words: wordsUpTo(column, chat, turn, answer) };
}

/** The shown words with their tokens [first, last). The first token has no word: it is attended to without a reason. */
function wordsUpTo(column, chat, turn, { text, offsets, first }) {
  const places = placesOf(text);
  const starts = [...offsets.map((place) => places[place]), text.length];
  let [at, place] = [0, 0];
  const words = pathTo(chat, turn.id).flatMap((one) => {
    const content = contentOf(one).trim();
    const begin = one === turn ? starts[first] : text.indexOf(content, at);
    if (begin < 0) return []; // the template changes this text
    at = begin + content.length;
    return wordsOf(column, one, text, begin).filter(({ end }) => one === turn || end <= at);
  });
  for (let i = 1; i < offsets.length; i += 1) {
    const begin = starts[i] + text.slice(starts[i], starts[i + 1]).search(/\S|$/);
    while (words[place]?.end <= begin) place += 1;
    if (begin === starts[i + 1] || !(words[place]?.start <= begin)) continue;
    words[place].first ??= i;
    words[place].last = i + 1;
  }
  return words.filter((word) => word.first);
}

/** Parts of the logit of a word's first token, minus the logit of the likeliest other token. */
async function reasonsOf({ ids }, { first }, by, options) {
  const body = { input: ids.slice(0, first), num_tokens: 0, explain: { by, versus: ids[first] } };
  const { parts } = (await post("v1/next", body, options)).data[0].reasons;
  return parts.map((part) => ({ ...part, value: -part.value })); // the server subtracts the named token
}

const sum = (values, { first, last }) => total(values.slice(first, last));
const strongest = (causes, count) => largest(causes.map(({ value }) => Math.abs(value)), count).map((i) => causes[i]);

async function estimatesOf({ answer, words }, word, options) {
  const parts = await kept(`${answer.name} ${word.first}`, (own) => reasonsOf(answer, word, "word", own), options);
  const values = parts.map(({ value }) => value);
  return words.filter(({ last }) => last <= word.first).map((one) => ({ word: one, value: sum(values, one) }));
}

/** value: the fall of the log-probability without a strong word; left: the probability that is left. */
function effectsOf({ answer }, word, estimates, options) {
  const prompt = answer.ids.slice(0, Math.ceil(word.last / RUN) * RUN);
  return Promise.all(strongest(estimates, MEASURED).map(async ({ word: one }) => {
    const hidden = prompt.map((_, i) => (i >= one.first && i < one.last ? null : 0)); // null is minus infinity
    const interventions = [{ point: "attn.hook_attn_scores", layer: "all", op: "add", value: [[hidden]] }];
    const make = async (own) => (await scored(prompt, own, { interventions })).logprobs;
    const logprobs = await kept(`${answer.name} ${one.first} ${prompt.length}`, make, options);
    const left = sum(logprobs, word);
    return { word: one, value: sum(answer.logprobs, word) - left, left: Math.exp(left) };
  }));
}

/** The last words of each new answer, until a message is sent. */
function workAhead(column, now, life) {
  let [abort, last] = [null, null];
  const work = async ({ chat, turn }, options) => {
    await new Promise(requestAnimationFrame); // the answer is drawn then
    const known = now().chat.id === chat && (await read(column, now(), turn.id, options));
    const own = known ? known.words.filter(({ first, text }) => first >= known.answer.first && /[\p{L}\p{N}]/u.test(text)) : [];
    for (const word of own.slice(-AHEAD)) await effectsOf(known, word, await estimatesOf(known, word, options), options);
  };
  life.addEventListener("abort", live.follow((next) => {
    abort?.abort();
    abort = new AbortController();
    if (last && !next) work(last, { signal: AbortSignal.any([life, abort.signal]), priority: 1000 }).catch(() => {});
    last = next;
  }));
}

/** The text of tokens, and the tokens of that text. */
async function reread(ids) {
  const { prompt: text } = await post("detokenize", { tokens: ids, skip_special_tokens: false });
  return { text, tokens: (await post("tokenize", { prompt: text })).tokens };
}

/** Open Why at the position that predicted a word, with the head that speaks most for it, if the reader still wants(it). */
async function openWhy({ answer }, word, wants) {
  const [{ layer, head }] = (await reasonsOf(answer, word, "head")).sort((a, b) => b.value - a.value);
  const ids = answer.ids.slice(0, word.first);
  let { text, tokens } = await reread(ids);
  const isTwice = tokens[0] === tokens[1] && ids[0] !== ids[1]; // a tokenizer adds the token that begins the template
  if (isTwice) ({ text, tokens } = await reread(ids.slice(1)));
  if (wants()) select({ view: "why", text, layer, head, query: tokens.length - 1, key: null });
}

function colour(causes) {
  const most = Math.max(...causes.map(({ value }) => Math.abs(value)));
  for (const level of LEVELS) {
    const own = causes.filter(({ value }) => Math.round((5 * value) / most) === level);
    highlight(`cause${level}`, own.map(({ word }) => rangeOf(word)));
  }
}

/** Colour the causes of a word, and say(text) them: the estimate, then the effects. */
async function explain(known, word, say, options) {
  const tell = (causes, name, write) => {
    if (options.signal.aborted) return;
    colour(causes);
    const said = strongest(causes, SAID).map((one) => write(one, `“${one.word.text}”`)).join(", ") || "no word";
    const chance = percent(Math.exp(sum(known.answer.logprobs, word)));
    say(`“${word.text}” had ${chance}. ${name}: ${said}. Click for the strongest head.`);
  };
  const estimates = await estimatesOf(known, word, options);
  tell(estimates, "Estimate", ({ value }, text) => `${text} ${value > 0 ? "+" : ""}${format(value)}`);
  tell(await effectsOf(known, word, estimates, options), "Measured", ({ left }, text) => `${percent(left)} without ${text}`);
}

const under = ({ clientX: x, clientY: y }) => (words) => words.find((word) => {
  const { left, right, top, bottom } = rangeOf(word).getBoundingClientRect();
  return x >= left && x <= right && y >= top && y <= bottom;
});

/** Keys may walk to a word out of sight. */
function show(box, word) {
  const { top, height } = rangeOf(word).getBoundingClientRect();
  scrollTo(box, { y: top - box.getBoundingClientRect().top + box.scrollTop, height });
}

/** now(): {chat, model}; say(text, word): the causes of a word, or null. */
function pointing(column, now, say, life) {
  let [abort, timer, word, known, count] = [null, 0, null, null, 0]; // count: of the events that point, or end it
  const point = (found) => {
    clearTimeout(timer);
    abort?.abort();
    word = found;
    column.classList.toggle("points", Boolean(word));
    highlight("cause-word", word ? [rangeOf(word)] : []);
    colour([]);
    say(null);
    if (word) show(column.parentElement, word);
  };
  const leave = () => {
    count += 1;
    clearTimeout(timer);
    if (word) point(null);
  };
  /** Point at the word that `choose(words of the event's answer)` returns; returns whether it was pointed at before. */
  const find = async ({ target }, choose) => {
    const turn = target.closest(".of-assistant .markdown")?.closest("[data-turn]");
    const own = (count += 1);
    const next = turn && (await read(column, now(), Number(turn.dataset.turn)));
    if (own !== count || life.aborted) return false;
    const found = next && choose(next.words.filter(({ first }) => first >= next.answer.first));
    if (found && found.start === word?.start) return true;
    if (!found) return leave();
    point(found);
    known = next;
    const { signal } = (abort = new AbortController());
    explain(known, word, (text) => say(text, found), { signal }).catch((error) =>
      !signal.aborted && say(`The causes are not known: ${error.message}`, found));
    return false;
  };
  const open = () => {
    const own = word;
    const wants = () => word === own; // leave() ends it
    const end = () => wants() && leave();
    openWhy(known, own, wants).then(end, end);
  };
  const listeners = {
    pointermove: (event) => {
      clearTimeout(timer);
      if (event.pointerType === "mouse" && !event.buttons) timer = setTimeout(() => find(event, under(event)).catch(leave), POINTED_MS);
    },
    pointerleave: (event) => event.pointerType === "mouse" && leave(),
    focusout: leave,
    click: async (event) => { // the first tap points, the next one opens; a mouse has pointed before its click
      if (event.target.closest("a, button") || !getSelection().isCollapsed) return;
      if (await find(event, under(event)).catch(leave)) open();
    },
    keydown: (event) => {
      if (event.defaultPrevented) return;
      const isText = event.target.matches(".markdown") && !hasModifier(event);
      const step = isText && { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (step) {
        find(event, (words) => {
          const place = words.findIndex(({ start }) => start === word?.start);
          return words.at(place < 0 ? Math.min(0, step) : (place + step) % words.length);
        }).catch(leave);
      } else if (word && event.key === "Escape") leave();
      else if (word && isText && event.key === "Enter") open();
      else return;
      used(event);
    },
  };
  for (const name in listeners) column.addEventListener(name, listeners[name], { signal: life });
  life.addEventListener("abort", live.follow(leave));
  life.addEventListener("abort", leave);
}

export function Causes({ chat, model }) {
  const place = useRef(null);
  const latest = useRef(null);
  latest.current = { chat, model };
  const [said, setSaid] = useState(null); // {text, word}
  useEffect(() => {
    const life = new AbortController();
    const column = place.current.parentElement.querySelector(".chat-column");
    const now = () => latest.current;
    workAhead(column, now, life.signal);
    pointing(column, now, (text, word) => setSaid(text && { text, word }), life.signal);
    const follow = () => setSaid((last) => last && { ...last });
    addEventListener("scroll", follow, { capture: true, passive: true, signal: life.signal });
    return () => life.abort();
  }, [chat.id, model]);
  const { left, bottom } = said ? rangeOf(said.word).getBoundingClientRect() : {};
  const style = said ? { left: `min(${left}px, 100vw - 23rem)`, top: `min(${bottom + 6}px, 100vh - 6rem)` } : {};
  return html`<p class=${said ? "tooltip causes" : "unseen"} role="status" ref=${place} style=${style}>${said?.text}</p>`;
}
