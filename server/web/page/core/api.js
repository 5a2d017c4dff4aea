// HTTP requests of the page: the same public routes as for other clients, the API key from memory, uniform errors.
import { chosenModel, withModel } from "./chosen_model.js";
import { saved } from "./place.js";
import { parseSafetensors } from "./safetensors.js";
import { keep, responseInFile } from "./saved.js";
import { Store } from "./store.js";

// This file is served at <root>/web/<version>/core/api.js, so the root is found under any proxy's path.
export const root = new URL("../../../", import.meta.url);

export const apiKey = new Store("");

/** "ok", "lost" (the server does not answer) or "key" (the key is missing or wrong). */
export const connection = new Store("ok");

/** The server's last rejection of a request's interventions; null after a request with interventions succeeded. */
export const refusal = new Store(null);

/** Call `listener()` when requests can be sent again. */
export function whenReachable(listener) {
  const ends = [connection.follow((now) => now === "ok" && listener()), apiKey.follow(() => listener())];
  return () => ends.forEach((end) => end());
}

class ApiError extends Error {
  constructor(message, { status = 0, code = null, param = null, retryAfter = null } = {}) {
    super(message);
    this.status = status;
    this.code = code;
    this.param = param;
    this.retryAfter = retryAfter; // seconds
  }

  get isPassing() {
    return this.status === 0 || this.status === 429 || this.status === 503;
  }
}

const NOT_IN_FILE = "This file contains only the views that were seen before it was saved.";

/** Send GET (no body) or POST. Complete responses are kept for a saved file, unless isKept is false. Raises ApiError, or AbortError. */
export async function ask(route, body, options = {}) {
  const { accept = "application/json", isKept = true, model = chosenModel.value } = options;
  if (saved) {
    const response = responseInFile(route, body, accept);
    if (response) return response;
    throw new ApiError(NOT_IN_FILE, { status: "saved" });
  }
  const named = withModel(route, body, model);
  let response;
  const send = async () => (response = await askServer(named.route, named.body, { ...options, accept }));
  if (!isKept || accept === EVENTS) return send();
  const bytes = await keep(model, { route, body, accept }, async () => wholeOf(await send()));
  return new Response(bytes, response);
}

const EVENTS = "text/event-stream";
const NOT_LOADED = "model_not_loaded"; // an error of one model: the server and its other models may be ready
const BROKEN_OFF = "The connection ended in the middle of the answer.";

async function wholeOf(response) {
  try {
    return await response.arrayBuffer();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    serverLost();
    throw new ApiError(BROKEN_OFF);
  }
}

async function askServer(route, body, { signal, accept }) {
  const headers = { Accept: accept };
  if (apiKey.value) headers.Authorization = `Bearer ${apiKey.value}`;
  if (body) headers["Content-Type"] = "application/json";
  const request = { method: body ? "POST" : "GET", headers, body: body ? JSON.stringify(body) : undefined, signal };
  let response;
  try {
    response = await fetch(new URL(route.replace(/^\//, ""), root), request);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    serverLost();
    throw new ApiError("The server does not answer.");
  }
  if (response.ok) {
    if (body?.interventions) refusal.set(null);
    return response;
  }
  const error = await readError(response);
  if (error.param?.startsWith("interventions")) refusal.set(error);
  if (error.status === 401) connection.set("key");
  if (error.status === 503 && error.code !== NOT_LOADED) serverLost(error.retryAfter);
  throw error;
}

async function readError(response) {
  let said = {};
  try {
    said = (await response.json()).error ?? {};
  } catch {
    // not the server's format: a proxy's response, perhaps
  }
  const message = said.message ?? `The server answered ${response.status} ${response.statusText}.`;
  const retryAfter = Number(response.headers.get("retry-after")) || null;
  return new ApiError(message, { status: response.status, code: said.code, param: said.param, retryAfter });
}

export async function askJson(route, body, options) {
  return (await ask(route, body, options)).json();
}

/** The binary answer of a route: a list with one entry per input, its JSON with `arrays: {name: {data, shape, axes}}`. */
export async function askLook(route, body, { signal } = {}) {
  const response = await ask(route, body, { signal, accept: "application/vnd.safetensors" });
  const { metadata, tensors } = parseSafetensors(await response.arrayBuffer());
  const entries = [];
  for (const [name, value] of Object.entries(metadata)) {
    const index = /\.(\d+)$/.exec(name)?.[1];
    if (index === undefined) continue;
    const entry = JSON.parse(value);
    const declared = { ...entry.points, ...entry.arrays };
    const arrays = {};
    for (const [tensorName, tensor] of Object.entries(tensors)) {
      if (tensorName === name) {
        arrays[name.slice(0, -index.length - 1)] = { ...tensor, axes: entry.axes };
      } else if (tensorName.startsWith(`${index}/`)) {
        const short = tensorName.slice(index.length + 1);
        arrays[short] = { ...declared[short], ...tensor };
      }
    }
    entries[Number(index)] = { ...entry, arrays };
  }
  return entries;
}

/** The events of a streamed answer, as parsed JSON, until [DONE]. */
export async function* askStream(route, body, { signal } = {}) {
  const response = await ask(route, { ...body, stream: true }, { signal, accept: EVENTS });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    let part;
    try {
      part = await reader.read();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      serverLost();
      throw new ApiError(BROKEN_OFF);
    }
    if (part.done) throw new ApiError("The answer of the server is incomplete.");
    const events = (rest + part.value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const data = event.replace(/^event:.*\n/, "").replace(/^data: ?/, "");
      if (data === "[DONE]") return;
      const message = JSON.parse(data);
      if (message.error) throw new ApiError(message.error.message, { status: 500, ...message.error });
      yield message;
    }
  }
}

let watching = false;

/** Poll the server until it is ready, first after `retryAfter` seconds. */
async function serverLost(retryAfter = null) {
  connection.set("lost");
  if (watching) return;
  watching = true;
  for (let wait = retryAfter === null ? 500 : retryAfter * 1000; ; wait = Math.min(wait * 1.5, 5000)) {
    await new Promise((done) => setTimeout(done, wait));
    try {
      if ((await fetch(new URL("health/ready", root), { cache: "no-store" })).ok) break;
    } catch {
      // not reachable yet
    }
  }
  watching = false;
  connection.set("ok");
}
