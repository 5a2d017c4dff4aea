// The request behind a view, as a person would write it: curl, or our Python client. Where the server wants a key, both
// take it from the environment, since what is copied is passed on.
import { apiKey, root } from "./api.js";

const KEY = "LIGHTWELL_API_KEY";

const shellQuoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

/** The curl command of a request; a GET without a body. */
export function asCurl(route, body) {
  const url = new URL(route.replace(/^\//, ""), root).href;
  const key = apiKey.value ? ` -H "Authorization: Bearer $${KEY}"` : "";
  const sent = body ? ` --json ${shellQuoted(JSON.stringify(body))}` : "";
  return `curl -s ${shellQuoted(url)}${key}${sent}`;
}

// The client's methods that take a route's fields under their own names.
const METHODS = {
  "v1/attention": "attention",
  "v1/trace": "trace",
  "v1/next": "next",
  "v1/lens": "lens",
  "v1/explain": "explain",
  "v1/contributions": "contributions",
  "v1/trajectory": "trajectory",
  "v1/heads": "heads",
  "v1/rollout": "rollout",
  "v1/embeddings": "embed",
  "v1/completions": "generate",
  "v1/chat/completions": "chat",
  "v1/circuits": "circuits",
};

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

// What is asked of the weights: a GET of a model's name, what is asked, and options; the client has methods of these names.
const OF_A_MODEL = /^v1\/models\/([^/]+)\/(parameters|geometry|weights)(?:\/([^?]+))?(?:\?(.*))?$/;
const valueOf = (text) => (/^-?\d+$/.test(text) ? Number(text) : text);

/** {method, first, options} of a request, as the client takes it; a method of undefined where it has none. */
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
  const { input, prompt, messages, ...options } = body ?? {};
  return { method: METHODS[route], first: input ?? prompt ?? messages, options };
}

/** The same request with lightwell_client; null for a route that has no method there. */
export function asPython(route, body) {
  const { method, first, options } = callOf(route, body);
  if (!method) return null;
  const parts = [
    ...(first === undefined ? [] : [pythonOf(first)]),
    ...Object.entries(options).map(([name, value]) => `${name}=${pythonOf(value)}`),
  ];
  const base = root.href.replace(/\/$/, "");
  const [imports, key] = apiKey.value ? ["import os\n\n", `, api_key=os.environ["${KEY}"]`] : ["", ""];
  const made = `from lightwell_client import Client\n\nclient = Client(${JSON.stringify(base)}${key})`;
  return `${imports}${made}\nanswer = client.${method}(${parts.join(", ")})\nprint(answer)\n`;
}
