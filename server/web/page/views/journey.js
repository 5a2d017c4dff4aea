// The journey: a token's way through the model as one large picture, with a camera that moves between stops.
import { classes, html, useEffect, useMemo, useRef } from "../core/html.js";
import { format } from "../core/numbers.js";
import { select, useSelection } from "../core/state.js";
import { useStore } from "../core/store.js";
import { theme } from "../core/theme.js";
import { ClipButton } from "../parts/clip_button.js";
import { Problem, Progress } from "../parts/problem.js";
import { Slider } from "../parts/slider.js";
import { CopyMenu, SaveMenu } from "../parts/tools.js";
import { useJourney } from "./journey/data.js";
import { filmOf } from "./journey/film.js";
import { Canvas, useStage } from "./journey/stage.js";

const TEMPERATURES = [0, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 20, 50, 100];

export function View() {
  const { text, journey_temperature: temperature } = useSelection();
  const { data, body, error, loading, retry } = useJourney();
  const mode = useStore(theme);
  const film = useMemo(() => data && filmOf(data, temperature, mode), [data, temperature, mode]);
  const stage = useStage(film);
  if (!text) return html`<p class="lack">Write a text above to follow one of its tokens.</p>`;
  return html`<div class="journey" aria-busy=${loading}>
    <${Problem} error=${error} retry=${retry} />
    ${film
      ? html`<section class="journey-stage">
          <${Controls} stage=${stage} film=${film} body=${body} temperature=${temperature} />
          <${Canvas} stage=${stage} film=${film} />
          <${Stops} stage=${stage} film=${film} /></section>`
      : !error && html`<${Progress} active=${loading} />`}
  </div>`;
}

function Controls({ stage, film, body, temperature }) {
  const { player, stop, isPlaying } = stage;
  const picture = useRef(null);
  picture.current = stage.savers;
  const last = film.stops.length - 1;
  const heat = (value) => {
    player.travel(film.indexOf("softmax")); // where it shows
    select({ journey_temperature: value });
  };
  return html`<div class="journey-bar"><div class="journey-controls">
    <button aria-label="Previous stop" title="Previous stop (←)" disabled=${stop === 0}
      onClick=${() => player.step(-1)}>◂</button>
    <button class="primary" onClick=${() => (isPlaying ? player.pause() : player.play())}>${isPlaying
      ? "Pause" : "Play"}</button>
    <button aria-label="Next stop" title="Next stop (→)" disabled=${stop === last}
      onClick=${() => player.step(1)}>▸</button>
    <input type="range" class="journey-scrubber" ref=${stage.scrubber} min="0" max=${last} step="0.01" aria-label="Place in the journey"
      aria-valuetext=${`stop ${stop + 1} of ${last + 1}, ${film.stops[stop]?.title}`}
      onInput=${(event) => player.seek(Number(event.target.value))}
      onChange=${(event) => player.travel(Number(event.target.value))} />
    </div><div class="journey-tools"><${Slider} label="temperature of the attention" value=${temperature} stops=${TEMPERATURES}
      onPick=${heat} write=${format} hint="The scores are divided by it before the softmax; the model itself uses 1" />
    <${ClipButton} canvas=${stage.canvas} drawAt=${stage.drawAt}
      name="journey" onStart=${() => player.pause()} onEnd=${() => player.seek(player.progress)} />
      <${CopyMenu} route="v1/explain" body=${body} /><${SaveMenu} picture=${picture} name="journey"
      arrays=${savedArrays(film)} /></div>
  </div>`;
}

function savedArrays({ data, products, weights }) {
  const rows = data.shown.map((position) => data.tokens[position]);
  const shape = [rows.length, products.numKeys];
  const of = (label, values) => ({ label, array: { data: Float64Array.from(values), shape }, rows, columns: data.tokens });
  return [of("products", products.dots), of("scores", products.scores), of("weights", weights)];
}

/** Each has a link to the view with more numbers; the current one is in sight. */
function Stops({ stage, film }) {
  const { layer, head, query, key } = film.data;
  const list = useRef(null);
  useEffect(() => {
    const current = list.current.children[stage.stop];
    if (current) list.current.scrollTo({ top: current.offsetTop - list.current.offsetTop - 8 });
  }, [stage.stop]);
  return html`<ol class="journey-stops" ref=${list} tabindex="0" aria-label="The stops in words">${film.stops.map((each, i) => html`<li
    key=${each.id} class=${classes(i === stage.stop && "on")} aria-current=${i === stage.stop ? "step" : undefined}>
    <h2 data-title=${i === stage.stop ? "" : undefined}><button class="plain"
      onClick=${() => stage.player.travel(i)}>${i + 1}. ${each.title}</button></h2>
    <p>${each.says}</p>
    ${each.to && html`<button class="quiet" onClick=${() => select({ layer, head, query, key, ...each.to })}>
      ${each.link} →</button>`}
  </li>`)}</ol>`;
}
