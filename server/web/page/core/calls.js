// The request of a view as code: curl, or our Python client. Both read a key from the environment: the code may be shared.
import { apiKey, root } from "./api.js";
import { withModel } from "./chosen_model.js";
import { sidesOfRequest } from "./compare.js";

const KEY = "LIGHTWELL_API_KEY";

const shellQuoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

/** With another side, two commands, the other side's first. */
export function asCurl(route, body) {
  const { own, other } = sidesOfRequest(body);
  if (other) return `${asCurl(route, other)}\necho\n${asCurl(route, own)}`;
  const { body: sent } = withModel(route, body);
  const url = new URL(route.replace(/^\//, ""), root).href;
  const key = apiKey.value ? ` -H "Authorization: Bearer $${KEY}"` : "";
  const data = sent ? ` --json ${shellQuoted(JSON.stringify(sent))}` : "";
  return `curl -s ${shellQuoted(url)}${key}${data}`;
}

// The client has a method for each of these routes under v1/.
const METHODS = new Set(["attention", "trace", "next", "lens", "explain", "contributions", "trajectory", "heads", "rollout", "circuits",
  "classify", "score"]);
const RENAMED = { embeddings: "embed", completions: "generate", "chat/completions": "chat" };

function pythonOf(value) {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (Array.isArray(value)) return `[${value.map(pythonOf).join(", ")}]`;
  if (typeof value === "object") {
    return `{${Object.entries(value).map(([name, part]) => `${JSON.stringify(name)}: ${pythonOf(part)}`).join(", ")}}`;
  }
  return JSON.stringify(value);
}

// Requests for weights: GET with a model's name, the resource and options.
const OF_A_MODEL = /^v1\/models\/([^/]+)\/(parameters|geometry|weights)(?:\/([^?]+))?(?:\?(.*))?$/;
const valueOf = (text) => (/^-?\d+$/.test(text) ? Number(text) : text);

/** The client's call for a request; method is undefined if the client has none. */
function callOf(route, body) {
  const [, name, asked, weight, query] = OF_A_MODEL.exec(route) ?? [];
  const model = asked && decodeURIComponent(name);
  if (asked === "parameters") return { method: asked, first: model, options: {} };
  if (asked === "geometry") {
    const { matrix, ...options } = Object.fromEntries(new URLSearchParams(query));
    return { method: asked, first: matrix, options: { ...options, model } };
  }
  if (asked === "weights") {
    const options = Object.fromEntries([...new URLSearchParams(query)].map(([key, value]) => [key, valueOf(value)]));
    return weight ? { method: asked, first: weight, options: { ...options, model } }
      : { method: "weight_names", options: { model } };
  }
  const { input, prompt, messages, ...options } = withModel(route, body).body ?? {};
  const short = route.replace("v1/", "");
  return { method: METHODS.has(short) ? short : RENAMED[short], first: input ?? prompt ?? messages, options };
}

function pythonCall(route, body) {
  const { method, first, options } = callOf(route, body);
  const parts = [
    ...(first === undefined ? [] : [pythonOf(first)]),
    ...Object.entries(options).map(([name, value]) => `${name}=${pythonOf(value)}`),
  ];
  return `client.${method}(${parts.join(", ")})`;
}

// The difference of two answers: one array for attention, else each array by its name.
const SUBTRACTED = {
  "v1/attention": "after.attention - before.attention",
  "v1/completions": `[
        None if old is None else new - old
        for new, old in zip(after.choices[0].logprobs.token_logprobs, before.choices[0].logprobs.token_logprobs)
    ]`,
};
const EACH_SUBTRACTED = "{name: after[name] - before[name] for name in after if name != \"ids\"}";

export function asPython(route, body) {
  if (!callOf(route, body).method) return null;
  const { own, other } = sidesOfRequest(body);
  const base = root.href.replace(/\/$/, "");
  const [imports, key] = apiKey.value ? ["import os\n\n", `, api_key=os.environ["${KEY}"]`] : ["", ""];
  const made = `from lightwell_client import Client\n\nclient = Client(${JSON.stringify(base)}${key})`;
  const start = `${imports}${made}\n`;
  if (!other) return `${start}answer = ${pythonCall(route, own)}\nprint(answer)\n`;
  const asked = `before = ${pythonCall(route, other)}\nafter = ${pythonCall(route, own)}`;
  // Entries masked in both answers are -inf - -inf; numpy warns about them.
  const quiet = `import numpy as np\n\nwith np.errstate(invalid="ignore"):\n    answer = ${SUBTRACTED[route] ?? EACH_SUBTRACTED}`;
  return `${start}${asked}\n\n${quiet}\nprint(answer)\n`;
}
