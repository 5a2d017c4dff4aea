// The views: names, conditions on the model, and functions that load their code. Code is loaded when a view is first
// opened (see core/code.js); it is in views/ under the view's id.
import { lackOf } from "./core/model.js";

const lacks = (route) => (capabilities) => lackOf(capabilities, route);

/** The reason why there is no cross-attention to show; null if there is. */
function lackOfSecondStack({ kind, architecture }) {
  if (kind === "encoder-decoder") return null;
  return `This model is ${kind === "decoder" ? "a decoder" : "an encoder"} alone (${architecture}): it has no second stack, so ` +
    "there is no attention between two texts. The attention inside its stack is shown by the view Attention.";
}

/**
 * id, title, about; lacks(capabilities): the reason why the model does not support the view, or null; load(): the
 * view's code. opensAnyway: the view opens without support, explains the reason and shows the available data.
 * Former names of a view are FORMER_VIEWS in core/state.js.
 */
export const VIEWS = [
  {
    id: "chat", title: "Chat", about: "talk to the model, or let it continue a text",
    lacks: lacks("/v1/completions"), load: () => import("./views/chat.js"),
  },
  {
    id: "attention", title: "Attention", about: "who looks at whom",
    load: () => import("./views/attention.js"),
  },
  {
    id: "journey", title: "Journey", about: "from a word to the next, in one picture",
    lacks: lacks("/v1/explain"), load: () => import("./views/journey.js"),
  },
  {
    id: "why", title: "Why", about: "where one weight comes from",
    lacks: lacks("/v1/explain"), load: () => import("./views/why.js"),
  },
  {
    id: "contributions", title: "Contributions", about: "contributions to a word's vector",
    lacks: lacks("/v1/contributions"), load: () => import("./views/contributions.js"),
  },
  {
    id: "motion", title: "Motion", about: "the arrows that move a word",
    lacks: lacks("/v1/contributions"), load: () => import("./views/motion.js"),
    usesText: ({ motion_show: shown }) => shown !== "contexts",
  },
  {
    id: "lens", title: "Lens", about: "the prediction of each layer",
    lacks: lacks("/v1/lens"), load: () => import("./views/lens.js"),
  },
  {
    id: "next", title: "Next token", about: "the probability of every token",
    lacks: lacks("/v1/next"), load: () => import("./views/next.js"),
  },
  {
    id: "heads", title: "Heads", about: "all heads, compared by their scores",
    lacks: lacks("/v1/heads"), load: () => import("./views/heads.js"),
  },
  {
    id: "flow", title: "Flow", about: "one block, every tensor",
    load: () => import("./views/flow.js"),
  },
  {
    id: "stacks", title: "Encoder · decoder", about: "two stacks and the attention between",
    lacks: lackOfSecondStack, opensAnyway: true, load: () => import("./views/stacks.js"),
  },
  {
    id: "embeddings", title: "Embeddings", about: "texts as vectors",
    lacks: lacks("/v1/embeddings"), load: () => import("./views/embeddings.js"),
  },
  {
    id: "weights", title: "Weights", about: "where the parameters are",
    usesText: ({ weights_show: shown }) => ["product", "positions", "units"].includes(shown),
    load: () => import("./views/weights.js"),
  },
  {
    id: "server", title: "Server", about: "its present state",
    load: () => import("./views/server.js"),
  },
];

for (const view of VIEWS) view.loadAgain = (attempt) => import(`./views/${view.id}.js?attempt=${attempt}`);

/** The view with that name, or the first one that every model has. */
export const viewNamed = (id) => VIEWS.find((view) => view.id === id) ?? VIEWS[1];
