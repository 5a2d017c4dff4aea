// The card of a lesson, with the sentences that are true for the served model; or the list of lessons.
import { json, useAnswer } from "../../core/fetching.js";
import { hasModifier, html, used, useEffect, useLayoutEffect, useMemo, useRef } from "../../core/html.js";
import { clamp, useCapabilities } from "../../core/model.js";
import { initialState, select, state, useSelection } from "../../core/state.js";
import { Answer, Problem, Progress } from "../../parts/problem.js";
import { VIEWS } from "../../views.js";
import { LIST, closeLesson, openLesson } from "./opening.js";
import { pixels, useTarget } from "./spotlight.js";
import { Values } from "./values.js";

const fileOf = (name, _, options) =>
  json(new URL(`../../lessons/${encodeURIComponent(name)}.json`, import.meta.url).href, null, options);

const allLessons = async (_, __, options) =>
  Promise.all((await fileOf(LIST, null, options)).map(async (name) => ({ name, ...(await fileOf(name, null, options)) })));

export const Card = ({ name }) => (name === LIST ? html`<${List} />` : html`<${Lesson} name=${name} />`);

/** Takes the focus each time `at` changes. */
function Panel({ title, aside, closes, at, target = null, onArrow, children }) {
  const card = useRef(null);
  useLayoutEffect(() => card.current.focus({ preventScroll: true }), [at]); // before the next key
  const onKeyDown = (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || !onArrow || hasModifier(event)) return;
    used(event);
    onArrow(by);
  };
  return html`
    ${target && html`<div class="lesson-outline" aria-hidden="true" style=${pixels(target)}></div>`}
    <div class="lesson card" role="dialog" aria-labelledby="lesson-title" tabindex="-1"
      ref=${card} onKeyDown=${onKeyDown}>
      <div class="lesson-head"><h2 id="lesson-title">${title}</h2><span class="hint">${aside}</span>
        <button class="quiet" aria-label=${closes} onClick=${() => closeLesson()}>✕</button></div>
      ${children}
    </div>`;
}

function List() {
  const answer = useAnswer(allLessons, LIST, null);
  return html`<${Panel} title="Lessons" closes="Close the list" at=${LIST}>
    <p class="hint">Each walks through the views on a text of its own. All numbers come from the served model.</p>
    <${Answer} answer=${answer}>${(lessons) => [...new Set(lessons.map(({ group }) => group))].map((group) => html`
      <h3>${group}</h3><ul class="lesson-list">${lessons.filter((lesson) => lesson.group === group).map(({ name, title, about, steps }) =>
        html`<li key=${name}><button onClick=${() => openLesson(name)}><b>${title}</b>
          <span>${about} <i>${steps.length} steps</i></span></button></li>`)}</ul>`)}<//>
  <//>`;
}

function Lesson({ name }) {
  const answer = useAnswer(fileOf, name, null);
  const capabilities = useCapabilities();
  const lesson = answer.data;
  const steps = useMemo(() => (lesson && isFor(lesson, capabilities) ? lesson.steps.filter((step) => isThere(step, capabilities))
    : []), [lesson, capabilities]);
  if (steps.length) return html`<${Walk} lesson=${lesson} steps=${steps} />`;
  return html`<${Panel} title=${lesson?.title ?? "Lesson"} closes="Close the lesson" at=${name}>
    <${Progress} active=${answer.loading} label="Opening…" />
    <${Problem} error=${answer.error} retry=${answer.retry} />
    ${lesson && html`<p>${lesson.otherwise}</p>`}
  <//>`;
}

/** It names no models, or this one's kind, architecture, family or name. */
const isFor = (part, { kind, architecture, family, model }) =>
  !part.for || part.for.some((name) => [kind, architecture, family, model].includes(name));

function isThere(step, capabilities) {
  const view = VIEWS.find(({ id }) => id === step.view);
  const hasFields = Object.keys(step.select ?? {}).every((field) => field in initialState);
  return view && !view.lacks?.(capabilities) && hasFields && isFor(step, capabilities);
}

function Walk({ lesson, steps }) {
  const { lesson_step: asked } = useSelection();
  const values = useMemo(() => new Values(lesson), [lesson]);
  const at = clamp(asked - 1, steps.length);
  const step = steps[at];
  const looking = useMemo(() => () => lookOf(step, lesson, values), [step, values]);
  const telling = useMemo(() => async () => ({ step, ...(await values.say(step.say)) }), [step, values]);
  const { data: shown } = useAnswer(looking, `look ${lesson.title} ${at}`, null);
  const { data, error, loading, retry } = useAnswer(telling, `${lesson.title} ${at}`, null);
  const isShown = shown?.step === step;
  const isTold = data?.step === step;
  useEffect(() => {
    const isStill = state.value.lesson !== "" && state.value.lesson_step === asked; // since this was drawn
    if (isShown && isStill) select(shown.look, { remember: false });
  }, [isShown && shown]);
  const target = useTarget(isShown ? step : null);
  const go = (by) => {
    if (at + by >= 0 && at + by < steps.length) select({ lesson_step: at + by + 1 }, { remember: true });
  };
  const isLast = at === steps.length - 1;
  return html`<${Panel} title=${step.title} aside=${`${at + 1} of ${steps.length}`} closes="Close the lesson" at=${step}
    target=${target} onArrow=${go}>
    <div aria-live="polite">
      ${at === 0 && lesson.follows && html`<p class="hint">This lesson follows ${lesson.follows}.</p>`}
      ${isTold ? data.said.map((sentence) => html`<p>${sentence}</p>`) : loading && html`<p>Asking the model…</p>`}
      ${isTold && data.left > 0 && html`<p class="hint">${leftOut(data.left)}</p>`}
    </div>
    <${Problem} error=${error} retry=${retry} />
    <div class="toolbar">
      <button disabled=${at === 0} onClick=${() => go(-1)}>Back</button>
      <button class="primary" onClick=${() => (isLast ? closeLesson() : go(1))}>${isLast ? "Done" : "Next"}</button>
      <button class="quiet" title="Close the lesson and keep the current view"
        onClick=${() => closeLesson({ isToStay: true })}>Stay here</button>
      ${isShown && isOfHead(step) && html`<button onClick=${() => select({ change_open: true })}>
        Change this head…</button>`}
      <span class="hint wide">← → walk, Esc gives your text back</span>
    </div>
  <//>`;
}

const isOfHead = ({ view, select: chosen = {} }) => "head" in chosen && ["attention", "why", "moves"].includes(view);

const leftOut = (count) => (count === 1 ? "One sentence is left out, because it is not true for this model."
  : `${count} sentences are left out, because they are not true for this model.`);

/** The complete selection of a step, without parts that the model lacks. */
async function lookOf(step, lesson, values) {
  const { lesson: _, lesson_step: __, model: ___, ...plain } = initialState;
  const entries = Object.entries({ text: lesson.text, ...lesson.select, ...step.select });
  const filled = await Promise.all(entries.map(async ([field, value]) => [field, await values.fill(value)]));
  return { step, look: { ...plain, ...Object.fromEntries(filled.filter(([, value]) => value !== null)), view: step.view } };
}
