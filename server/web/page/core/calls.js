// The request behind a view, as a person would write it: curl, or our Python client.
import { root } from "./api.js";

const shellQuoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

/** The curl command of a request; a GET without a body. */
export function asCurl(route, body) {
  const url = new URL(route.replace(/^\//, ""), root).href;
  return body ? `curl -s ${shellQuoted(url)} --json ${shellQuoted(JSON.stringify(body))}` : `curl -s ${shellQuoted(url)}`;
}

const METHODS = {
  "v1/attention": "attention",
  "v1/trace": "trace",
  "v1/next": "next_token",
  "v1/lens": "lens",
  "v1/explain": "explain",
  "v1/contributions": "contributions",
  "v1/trajectory": "trajectory",
  "v1/heads": "heads",
  "v1/rollout": "rollout",
  "v1/embeddings": "embeddings",
  "v1/completions": "completions",
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

/** The same request with lightwell_client; null for a route that has no method there. */
export function asPython(route, body) {
  const method = METHODS[route];
  if (!method) return null;
  const { input, prompt, ...options } = body ?? {};
  const first = input ?? prompt;
  const parts = [
    ...(first === undefined ? [] : [pythonOf(first)]),
    ...Object.entries(options).map(([name, value]) => `${name}=${pythonOf(value)}`),
  ];
  const base = root.href.replace(/\/$/, "");
  return `from lightwell_client import Client\n\nclient = Client(${JSON.stringify(base)})\nprint(client.${method}(${parts.join(", ")}))\n`;
}
