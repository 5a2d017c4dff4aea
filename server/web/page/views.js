// The views: names, conditions on the model, and functions that load their code from views/.
import { lackOf } from "./core/model.js";

const lacks = (route) => (capabilities) => lackOf(capabilities, route);

/**
 * about, group: for the list; heading: if not the title; lacks(capabilities): why the model does not support the view, or null.
 * Former names are in core/state.js.
 */
export const VIEWS = [
  {
    id: "home", group: "Start", title: "Home", about: "a text and its next word",
    heading: "See why the model says its next word.", usesText: () => false, load: () => import("./views/home.js"),
  },
  {
    id: "chat", group: "Start", title: "Chat", about: "talk to the model",
    lacks: lacks("/v1/completions"), load: () => import("./views/chat.js"),
  },
  {
    id: "attention", group: "Attention", title: "Attention", about: "who looks at whom",
    load: () => import("./views/attention.js"),
  },
  {
    id: "journey", group: "Start", title: "Journey", about: "from a word to the next",
    lacks: lacks("/v1/explain"), load: () => import("./views/journey.js"),
  },
  {
    id: "why", group: "Attention", title: "Why", about: "how one weight arises",
    lacks: lacks("/v1/explain"), load: () => import("./views/why.js"),
  },
  {
    id: "moves", group: "Words as vectors", title: "How a word moves", about: "words, heads and MLPs, as arrows and amounts",
    lacks: lacks("/v1/contributions"), load: () => import("./views/moves.js"),
    usesText: ({ moves_as: as, motion_show: shown }) => as === "amounts" || shown !== "contexts",
  },
  {
    id: "lens", group: "The next word", title: "Lens", about: "the prediction of each layer",
    lacks: lacks("/v1/lens"), load: () => import("./views/lens.js"),
  },
  {
    id: "next", group: "The next word", title: "Next token", about: "every token's probability",
    lacks: lacks("/v1/next"), load: () => import("./views/next.js"),
  },
  {
    id: "heads", group: "Attention", title: "Heads", about: "all heads, compared",
    lacks: lacks("/v1/heads"), load: () => import("./views/heads.js"),
  },
  {
    id: "patching", group: "The next word", title: "Patching", about: "where a fact is found",
    lacks: lacks("/v1/next"), load: () => import("./views/patching.js"), usesText: () => false,
  },
  {
    id: "flow", group: "Words as vectors", title: "Flow", about: "one block, every tensor",
    load: () => import("./views/flow.js"),
  },
  {
    id: "embeddings", group: "Words as vectors", title: "Embeddings", about: "texts as vectors",
    lacks: lacks("/v1/embeddings"), load: () => import("./views/embeddings.js"),
  },
  {
    id: "weights", group: "The model", title: "Weights", about: "where the parameters are",
    usesText: ({ weights_show: shown }) => ["product", "positions", "units"].includes(shown),
    load: () => import("./views/weights.js"),
  },
  {
    id: "server", group: "The model", title: "Server", about: "its present state",
    load: () => import("./views/server.js"),
  },
];

for (const view of VIEWS) view.loadAgain = (attempt) => import(`./views/${view.id}.js?attempt=${attempt}`);

/** In the order of each group's first view. */
export const GROUPS = [...new Set(VIEWS.map(({ group }) => group))]
  .map((name) => ({ name, views: VIEWS.filter(({ group }) => group === name) }));

export const viewNamed = (id) => VIEWS.find((view) => view.id === id) ?? VIEWS[0];
