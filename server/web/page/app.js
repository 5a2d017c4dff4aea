// The page: header, the shared text and head, the list of views, and the open view.
import { connection } from "./core/api.js";
import { useCode } from "./core/code.js";
import { html, render, useEffect, useErrorBoundary, useRef } from "./core/html.js";
import { Capabilities } from "./core/model.js";
import { useServed } from "./core/models.js";
import { counted } from "./core/numbers.js";
import { isEmbedded, isFramed, saved } from "./core/place.js";
import { useMaskedPlace } from "./core/sequences.js";
import { linkTo, select, useSelection } from "./core/state.js";
import { useStore } from "./core/store.js";
import { theme, toggleTheme } from "./core/theme.js";
import { KeyForm } from "./parts/key_form.js";
import { ModelChoice, ModelNote } from "./parts/model_choice.js";
import { Problem, Progress } from "./parts/problem.js";
import { SharedBar } from "./parts/shared_bar.js";
import { FrameHeader, SavedHeader, TakeAway } from "./parts/take_away.js";
import { Tooltip } from "./parts/tooltip.js";
import { ChangeBar, ChangeDrawer } from "./views/change.js";
import { Sides } from "./views/change/sides.js";
import { Lessons } from "./views/lessons.js";
import { LIST, openLesson } from "./views/lessons/opening.js";
import { GROUPS, viewNamed } from "./views.js";

function App() {
  const served = useServed();
  const { data: capabilities, models, name } = served;
  const link = useStore(connection);
  return html`<${Capabilities.Provider} value=${capabilities}>
    ${saved && html`<${SavedHeader}><${ThemeButton} /><//>`}
    ${isFramed && html`<${FrameHeader} />`}
    ${!saved && !isEmbedded && html`<${Header} served=${served} />`}
    ${models.length > 0 && html`<${ModelNote} served=${served} />`}
    ${link === "lost" && html`<p class="banner" role="alert">The server does not answer, or is still loading.
      The page continues by itself when it is ready.</p>`}
    ${link === "key" && !isFramed && html`<${KeyForm} />`}
    ${capabilities
      ? html`<${Body} key=${served.identity} capabilities=${capabilities} others=${served.others} />`
      : html`<main class="view"><${Progress} active=${served.loading}
            label=${served.isLoading ? `Loading the model ${name}…` : "Asking which model is served…"} />
          <${Problem} error=${served.error?.status === 401 ? null : served.error} retry=${served.retry} /></main>`}
    <${Tooltip} />
  </${Capabilities.Provider}>`;
}

function Header({ served }) {
  const { view } = useSelection();
  const { data: capabilities, models } = served;
  return html`<header class="top">
    <button class="skip" onClick=${() => document.querySelector("main")?.focus()}>Go to the view</button>
    <a class="brand" href=${linkTo({ view: "home" })}><span class="mark" aria-hidden="true"></span>Lightwell</a>
    ${models.length > 1 && html`<${ModelChoice} served=${served} />`}
    ${capabilities && !served.isOpening &&
    html`<span class="model">${models.length < 2 && html`<b>${capabilities.model}</b>${" "}`}
      <span class="wide">${capabilities.architecture}, ${modelSize(capabilities)}</span></span>`}
    <span class="grow"></span>
    <button class="quiet" onClick=${() => openLesson("tour")}>Tour</button>
    <button class="quiet" onClick=${() => openLesson(LIST)}>Lessons</button>
    ${capabilities && html`<${TakeAway} view=${viewNamed(view)} />`}
    <a class="quiet button wide" href="docs">API</a>
    <${ThemeButton} />
  </header>`;
}

function ThemeButton() {
  const mode = useStore(theme);
  return html`<button class="quiet" aria-label=${`Use ${mode === "dark" ? "light" : "dark"} colours`}
    onClick=${toggleTheme}>${mode === "dark" ? "☀" : "☾"}</button>`;
}

function modelSize(capabilities) {
  return Object.entries(capabilities.stacks)
    .map(([name, stack]) => `${name}: ${counted(stack.num_layers, "layer")} of ${counted(stack.num_heads, "head")}`)
    .join("; ");
}

function Body({ capabilities, others }) {
  const selection = useSelection();
  const view = viewNamed(selection.view);
  useMaskedPlace();
  useEffect(() => {
    document.title = `${view.title} · Lightwell`;
  }, [view]);
  const stage = html`<div class="stage">
    ${!isEmbedded && html`<${SharedBar} view=${view} />`}
    <${ChangeBar} view=${view} canChange=${!saved && !isEmbedded && view.id !== "home"} others=${others} />
    <${OpenView} key=${view.id} view=${view} capabilities=${capabilities} />
  </div>`;
  if (saved || isEmbedded) return stage;
  return html`<div class="body">
    <${Rail} current=${view} capabilities=${capabilities} />
    ${stage}
    <${ChangeDrawer} view=${view} />
    <${Lessons} />
  </div>`;
}

function Rail({ current, capabilities }) {
  const rail = useRef(null);
  useEffect(() => {
    // on a phone the list is one line, which scrolls
    const open = rail.current.querySelector("[aria-current]");
    rail.current.scrollLeft = open.offsetLeft - (rail.current.clientWidth - open.offsetWidth) / 2;
  }, [current]);
  return html`<nav class="rail" aria-label="Views" ref=${rail}><div>${GROUPS.map(({ name, views }) => html`<p>${name}</p>
    <ol aria-label=${name}>${views.map((view) => {
      const lack = view.lacks?.(capabilities);
      return html`<li key=${view.id}><button aria-current=${view === current ? "page" : undefined}
        class=${lack ? "lacking" : ""}
        title=${lack ?? view.about}
        onClick=${() => select({ view: view.id })}
      ><b>${view.title}</b><span>${view.about}</span></button></li>`;
    })}</ol>`)}</div></nav>`;
}

/** Its code is fetched when it is first opened; an exception in it does not affect the rest of the page. */
function OpenView({ view, capabilities }) {
  const { module, error: missing, retry } = useCode(view);
  const [broken, mend] = useErrorBoundary();
  const lack = view.lacks?.(capabilities);
  if (lack) return html`<main class="view"><h1>${view.title}</h1><p class="lack">${lack}</p></main>`;
  if (broken) {
    const error = new Error(`This view broke: ${broken.message}`);
    return html`<main class="view"><h1>${view.title}</h1><${Problem} error=${error} retry=${mend} /></main>`;
  }
  return html`<main class="view" id=${`view-${view.id}`} tabindex="-1">
    <h1>${view.heading ?? html`${view.title} <small>${view.about}</small>`}</h1>
    <${Problem} error=${missing} retry=${retry} />
    ${module ? html`<${Sides} view=${view} View=${module.View} />` : !missing && html`<${Progress} active=${true} label="Opening…" />`}
  </main>`;
}

const place = document.getElementById("app");
place.textContent = "";
render(html`<${App} />`, place);
