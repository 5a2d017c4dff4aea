// Current server metrics from /metrics, read once a second while this view is visible.
import { ask, askJson } from "../core/api.js";
import { useAnswer, useJson } from "../core/fetching.js";
import { html, useEffect, useRef, useState } from "../core/html.js";
import { modelsIn, purposeOf } from "../core/models.js";
import { bytes, counted, format, grouped, percent } from "../core/numbers.js";
import { growth, quantile, rate, Reading } from "../core/prometheus.js";
import { ModelState } from "../parts/model_choice.js";
import { Problem, Progress } from "../parts/problem.js";
import { Scrolled } from "../parts/scrolled.js";
import { Table } from "../parts/table.js";
import { Term } from "../parts/term.js";
import { TERMS } from "../parts/terms.js";
import { Card, CopyMenu } from "../parts/tools.js";
import { Spark } from "./server/spark.js";

const EVERY_MS = 1000;
const KEPT_READINGS = 121; // two minutes
const RATE_OVER = 5; // readings: a rate over several seconds, steadier than over one
const LATENCY_OVER = 60; // seconds: quantiles of the last minute

const ANSWERS = "lightwell_http_requests_total";

const perSecond = (value) => `${format(value, 3)}/s`;
const milliseconds = (seconds) => (seconds === null ? "–" : seconds >= 1 ? `${format(seconds, 3)} s`
  : `${format(seconds * 1000, 3)} ms`);

// title, description, value at a reading (given an earlier one), format
const GAUGES = [
  ["Tokens out", "generated, a second", (a, b) => rate(a, b, "lightwell_generation_tokens_total"), perSecond],
  ["Tokens in", "of prompts, a second", (a, b) => rate(a, b, "lightwell_prompt_tokens_total"), perSecond],
  ["Requests", "answered, a second", (a, b) => rate(a, b, ANSWERS, isOfTheApi), perSecond],
  ["Running", "requests in the batch", (_, b) => b.sum("lightwell_num_requests_running"), format],
  ["Waiting", "requests without a place in it", (_, b) => b.sum("lightwell_num_requests_waiting"), format],
  ["KV cache", "of its memory in use", (_, b) => b.most("lightwell_kv_cache_usage_ratio"), percent],
  ["Steps", "passes of the network, a second", (a, b) => rate(a, b, "lightwell_engine_steps_total"), perSecond],
  ["Tokens a step", "how full the batch is", tokensPerStep, (value) => format(value, 3)],
  ["Captured", "attention and traces, a second", (a, b) => rate(a, b, "lightwell_capture_bytes_total"), (value) => `${bytes(value)}/s`],
  ["Captures in flight", "not yet sent", (_, b) => b.sum("lightwell_inflight_capture_bytes"), bytes],
];
const LATENCIES = [
  ["Time to first token", "lightwell_time_to_first_token_seconds"],
  ["Between tokens", "lightwell_inter_token_latency_seconds"],
  ["Whole request", "lightwell_e2e_request_latency_seconds"],
  ["In the queue", "lightwell_request_queue_time_seconds"],
];
const COUNTS = [
  ["Prompt tokens found in the prefix cache", "lightwell_prefix_cache_hits_total"],
  ["Prompt tokens looked up in it", "lightwell_prefix_cache_queries_total"],
  ["Requests put back to waiting (preemptions)", "lightwell_num_preemptions_total"],
  ["Captures refused for their size or the budget", "lightwell_capture_rejected_total"],
  ["Workers started again", "lightwell_worker_restarts_total"],
];

const LEFT = "499"; // the client disconnected before its answer, like this page when the selection changes
const isFailure = ({ status }) => status >= "400" && status !== LEFT;

// the page's own polling and files would dominate the table
function isOfTheApi({ route = "" }) {
  return route.startsWith("/v1/") || route.endsWith("tokenize");
}

function tokensPerStep(before, after) {
  const steps = growth(before, after, "lightwell_engine_steps_total");
  return steps > 0 ? growth(before, after, "lightwell_computed_tokens_total") / steps : 0;
}

/** The last two minutes, the newest last; nothing is fetched while the tab is hidden. */
function useReadings() {
  const [readings, setReadings] = useState([]);
  const [error, setError] = useState(null);
  useEffect(() => {
    const abort = new AbortController();
    let timer;
    const read = async () => {
      if (!document.hidden) {
        try {
          const text = await (await ask("metrics", null, { signal: abort.signal, accept: "text/plain" })).text();
          const reading = new Reading(text, performance.now() / 1000);
          setReadings((old) => [...old.slice(1 - KEPT_READINGS), reading]);
          setError(null);
        } catch (problem) {
          if (problem.name !== "AbortError") setError(problem);
        }
      }
      if (!abort.signal.aborted) timer = setTimeout(read, EVERY_MS);
    };
    read();
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, []);
  return { readings, error };
}

/** Their states are read again with each reading of the metrics if there are several. */
function useModels(reading) {
  const answer = useAnswer(askJson, "models", null); // the view counts the answers of routes under /v1
  const models = modelsIn(answer.data);
  useEffect(() => {
    if (models.length > 1) answer.retry();
  }, [reading]);
  return models;
}

export function View() {
  const { readings, error } = useReadings();
  const version = useJson("version");
  const last = readings.at(-1);
  const models = useModels(last);
  return html`<div class="server-view">
    <p>Everything here is read from <a href="metrics"><code>/metrics</code></a>, once a second while
      this view is open, as Prometheus reads it. ${version.data && `Lightwell ${version.data.version}`}${
      models.length > 0 && `, serving ${models.length === 1 ? models[0].id : counted(models.length, "model")}.`}</p>
    <div class="toolbar"><${CopyMenu} route="metrics" /></div>
    <${Problem} error=${error} />
    ${!last && !error && html`<${Progress} active=${true} />`}
    ${models.length > 1 && html`<${Models} models=${models} />`}
    ${last && html`<${Gauges} readings=${readings} />
      <div class="columns"><${Latencies} readings=${readings} /><${Totals} last=${last} /></div>
      <${Routes} readings=${readings} />`}
  </div>`;
}

function Models({ models }) {
  const rows = models.map((model) => [model.id, html`<td>${purposeOf(model)}</td>`, html`<${ModelState} model=${model} />`,
    model.max_model_len === null ? "" : counted(model.max_model_len, "token")]);
  return html`<${Card} title="Models"><${Scrolled} label="Models"><${Table} class="models" aria-label="Models"
    names=${["name", "purpose", "state", "context"]} rows=${rows} /><//><//>`;
}

function Gauges({ readings }) {
  return html`<ul class="gauges">${GAUGES.map(([title, about, valueAt, write]) => {
    const since = (i) => readings[Math.max(0, i + 1 - RATE_OVER)];
    const series = readings.slice(1).map((reading, i) => valueAt(since(i), reading) ?? 0);
    const now = readings.length < 2 ? (valueAt(readings[0], readings[0]) ?? 0) : series.at(-1);
    const most = write(Math.max(0, ...series));
    return html`<li class="card" key=${title}><h2>${title in TERMS ? html`<${Term} of=${title} />` : title}</h2>
      <strong>${write(now)}</strong><span class="hint">${about}</span>
      <${Spark} values=${series} most=${KEPT_READINGS - 1}
        label=${`${title} over the last ${series.length} seconds, now ${write(now)}, at most ${most}`} /></li>`;
  })}</ul>`;
}

function Latencies({ readings }) {
  const after = readings.at(-1);
  // by time: a hidden tab had no readings meanwhile
  const before = readings.findLast(({ time }) => time <= after.time - LATENCY_OVER) ?? readings[0];
  const rows = LATENCIES.map(([title, name]) =>
    [title, ...[0.5, 0.9, 0.99].map((share) => milliseconds(quantile(before, after, name, share)))]);
  return html`<${Card} title="Latency"><${Table} names=${["what", "p50", "p90", "p99"]} rows=${rows}
    caption="of the last minute; between the histogram's bounds it is interpolated" /><//>`;
}

function Totals({ last }) {
  const started = last.sum("process_start_time_seconds");
  const uptime = started === null ? null : Math.max(0, Date.now() / 1000 - started);
  const rows = [
    ...(uptime === null ? [] : [["Up for", `${grouped(Math.round(uptime))} s`]]),
    ...COUNTS.map(([title, name]) => [title, grouped(last.sum(name) ?? 0)]),
    ["Memory of the API process", bytes(last.sum("process_resident_memory_bytes") ?? 0)],
  ];
  return html`<${Card} title="Since the start"><${Table} aria-label="Since the start" rows=${rows} /><//>`;
}

function Routes({ readings }) {
  const [before, after] = [readings[0], readings.at(-1)];
  const known = useRef(new Map());
  for (const { labels } of after.samples(ANSWERS)) {
    if (isOfTheApi(labels)) known.current.set(`${labels.method} ${labels.route} ${labels.status}`, labels);
  }
  const rows = [...known.current.values()].map((labels) => {
    const isSame = (other) => ["route", "status", "method"].every((name) => other[name] === labels[name]);
    const count = after.sum(ANSWERS, isSame) ?? 0;
    return { labels, count, speed: rate(before, after, ANSWERS, isSame) };
  });
  rows.sort((a, b) => b.count - a.count);
  return html`<${Card} title="Answers by route">${rows.length === 0 ? html`<p class="hint">No requests yet.</p>`
    : html`<${Scrolled} label="Answers by route"><${Table} aria-label="Answers by route"
      names=${["route", "status", "answers", "a second, last two minutes"]} rows=${rows.map(({ labels, count, speed }) => [
        html`<code>${labels.method} ${labels.route.replace(":path", "")}</code>`,
        html`<td class=${isFailure(labels) ? "number refused" : "number"}>${labels.status === LEFT ? `${LEFT}: left` : labels.status}</td>`,
        grouped(count), format(speed, 3)])} /><//>`}<//>`;
}
