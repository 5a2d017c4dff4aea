// The views: their names, when a model has them, and where their code is. They are loaded when they are opened.
import { lackOf } from "./core/model.js";

const lacks = (route) => (capabilities) => lackOf(capabilities, route);

export const VIEWS = [
  {
    id: "write", title: "Write", about: "let it continue, word by word",
    lacks: lacks("/v1/completions"), load: () => import("./views/write.js"),
  },
  {
    id: "attention", title: "Attention", about: "who looks at whom",
    load: () => import("./views/attention.js"),
  },
  {
    id: "why", title: "Why", about: "where one weight comes from",
    lacks: lacks("/v1/explain"), load: () => import("./views/why.js"),
  },
  {
    id: "contributions", title: "Contributions", about: "what moves a word's vector",
    lacks: lacks("/v1/contributions"), load: () => import("./views/contributions.js"),
  },
  {
    id: "lens", title: "Lens", about: "what each layer would say",
    lacks: lacks("/v1/lens"), load: () => import("./views/lens.js"),
  },
  {
    id: "next", title: "Next token", about: "every word's chance",
    lacks: lacks("/v1/next"), load: () => import("./views/next.js"),
  },
  {
    id: "heads", title: "Heads", about: "find the heads that do something",
    lacks: lacks("/v1/heads"), load: () => import("./views/heads.js"),
  },
  {
    id: "flow", title: "Flow", about: "one block, every tensor",
    load: () => import("./views/flow.js"),
  },
  {
    id: "stacks", title: "Encoder · decoder", about: "the parts and the attention between",
    load: () => import("./views/stacks.js"),
  },
  {
    id: "embeddings", title: "Embeddings", about: "texts as points",
    lacks: lacks("/v1/embeddings"), load: () => import("./views/embeddings.js"),
  },
  {
    id: "weights", title: "Weights", about: "where the parameters are",
    usesText: ({ weights_show: shown }) => ["product", "positions", "units"].includes(shown),
    load: () => import("./views/weights.js"),
  },
  {
    id: "server", title: "Server", about: "what it does right now",
    load: () => import("./views/server.js"),
  },
];

/** The view of that name, or the first that everyone has. */
export const viewNamed = (id) => VIEWS.find((view) => view.id === id) ?? VIEWS[1];
