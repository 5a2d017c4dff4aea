// The models of the server, the choice of one of them, and the features of the shown one.
import { askJson, whenReachable } from "./api.js";
import { chosenModel } from "./chosen_model.js";
import { useAnswer } from "./fetching.js";
import { useCallback, useEffect, useRef, useState } from "./html.js";
import { setPrecision } from "./numbers.js";
import { hasModels, saved } from "./place.js";
import { restarts } from "./served.js";
import { select, useSelection } from "./state.js";
import { useStore } from "./store.js";

const IMPLIED = { completion: "chat", sparse_embedding: "embedding" };

/** A model's purposes in words, without those that another one implies. */
export function purposeOf({ capabilities: all }) {
  return (all ?? []).filter((one) => !all.includes(IMPLIED[one])).join(", ");
}

export const useOther = (name) => useAnswer(askJson, name ? `v1/capabilities?model=${encodeURIComponent(name)}` : null, null);

export const stateOf = ({ status }) => (status.value === "unloaded" ? "not loaded" : status.value);

/** Without LoRA adapters. */
export const modelsIn = (answer) => answer?.data.filter(({ parent }) => parent === null) ?? [];

const listModels = (route, body, options) => askJson(route, body, { ...options, isKept: false });

/**
 * {models, list, name}: several models ([] for one); the answer with them; and the name in the
 * address, or of another model if the server has none with that name. `name` is "" without a choice, and null until
 * the models are known.
 */
function useModels() {
  const { model: asked } = useSelection();
  const isChoice = !saved && (hasModels || asked !== "");
  const list = useAnswer(listModels, isChoice ? "v1/models" : null, null);
  const last = useRef([]); // kept while the list is read again
  if (list.data) last.current = modelsIn(list.data);
  const models = last.current;
  const names = models.map(({ id }) => id);
  const other = names.includes(chosenModel.value) ? chosenModel.value : names[0];
  const name = !isChoice ? asked : names.includes(asked) ? asked : (other ?? null);
  return { models, list, name, asked };
}

/**
 * The models, the name of the one to show, whether it is not shown or not loaded yet, and the answer of /v1/capabilities
 * about it; `data` is of the previous model until it comes. `identity` changes with the shown model and its process. `note`:
 * why another model than the wanted one is shown, or null. others: names of all other models and of LoRA adapters.
 */
export function useServed() {
  const { models, list, name, asked } = useModels();
  const [note, setNote] = useState(null);
  const ofModel = useCallback((route, body, options) => askJson(route, body, { ...options, model: name }), [name]);
  const answer = useAnswer(ofModel, name === null ? null : "v1/capabilities", null);
  const run = useStore(restarts);
  useEffect(() => whenReachable(answer.retry), []);
  useEffect(() => restarts.follow(answer.retry), []);
  const shown = useRef({ data: null, identity: "" });
  const identity = `${run} ${JSON.stringify(answer.data)}`;
  if (answer.data !== null && identity !== shown.current.identity) {
    shown.current = { data: answer.data, identity };
    setPrecision(answer.data.compute_dtype);
    if (name) chosenModel.set(answer.data.model); // before the views of this model send requests
  }
  const previous = chosenModel.value;
  const isOther = Boolean(previous) && name !== previous;
  useEffect(() => {
    if (models.length) list.retry(); // their states have changed
    if (!answer.error || !isOther) return;
    setNote(`${answer.error.message} The page still shows ${previous}.`);
    select({ model: previous }, { remember: false });
  }, [answer.data, answer.error]);
  useEffect(() => {
    if (!name || asked === name) return;
    if (asked) setNote(`This server has no model “${asked}”, which the address names. The page shows ${name}.`);
    select({ model: name }, { remember: false });
  }, [asked, name]);
  const choose = (model) => {
    setNote(null);
    list.retry();
    select({ model }, { remember: true });
  };
  const state = models.find(({ id }) => id === name)?.status.value ?? "loaded";
  return {
    ...(name === null ? list : answer), ...shown.current, models, name, isOpening: isOther,
    isLoading: state !== "loaded", note, choose, refresh: list.retry, dismiss: () => setNote(null),
    others: (list.data?.data ?? []).map(({ id }) => id).filter((id) => id !== name),
  };
}
