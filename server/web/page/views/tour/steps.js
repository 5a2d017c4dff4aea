// The steps of the tour: what is opened, what is pointed at, and one or two sentences for somebody who is new here.
import { format, percent } from "../../core/numbers.js";
import { STORY } from "./facts.js";

// How the views stand while they are explained, whatever was set before.
const PLAIN = {
  text: STORY,
  part: "",
  query: -1,
  key: 0,
  write_chat: false,
  attention_kind: "pattern",
  attention_orientation: "rows",
  attention_sink: true,
  attention_picture: "both",
  next_temperature: 1,
  next_top_k: 0,
  next_top_p: 1,
  next_min_p: 0,
  change: "",
  change_show: "after",
  change_text: "",
  change_open: false,
};

/** The head that looks back, at the pair that it is told of; as it stands where no head does. */
const lookingBack = ({ back, last, key }) => (back ? { ...PLAIN, layer: back.layer, head: back.head, query: last, key } : PLAIN);

const headOf = ({ layer, head }) => `head ${head} of layer ${layer}`;

/**
 * view: where it happens; title; targets: selectors of what is outlined, the first that is there; look(facts): the
 * selection; say(facts): the words; isOfHead: whether the chosen head can be changed from here. All steps but
 * the first wait for the facts (see facts.js).
 */
export const STEPS = [
  {
    view: "write",
    title: "A model that writes",
    targets: ["#write"],
    look: () => PLAIN,
    say: () =>
      "Press Write. The model reads the prompt and adds one token at a time; the bar under each is the probability " +
      "it had. Click one to see what else could have come.",
  },
  {
    view: "attention",
    title: "Text becomes tokens",
    targets: [".text-tokens", ".shared"],
    look: () => PLAIN,
    say: () =>
      "The model reads pieces of text, tokens, each as a vector. A click makes one the query, in blue: the one " +
      "that looks. Shift and a click make one the key, in orange: the one looked at.",
  },
  {
    view: "attention",
    title: "One head, one pattern",
    targets: ["#view-attention .head-pictures .card", "#view-attention .card"],
    look: ({ before }) => (before ? { ...PLAIN, key: -2, layer: before.layer, head: before.head } : PLAIN),
    say: ({ before }) =>
      `Attention moves information from token to token. Each row is one query and says, with weights that sum to 1, where it looks. ${
        before ? `The model's ${headOf(before)} mostly looks at the token before: see the dark line beside the diagonal.` : ""
      }`,
  },
  {
    view: "attention",
    title: "Every head looks for something else",
    isOfHead: true,
    targets: ["#view-attention .wall", "#view-attention .card"],
    look: lookingBack,
    say: ({ back, asker, asked }) =>
      back
        ? `All heads of all layers. In ${headOf(back)}, the last “${asker}” gives ${percent(back.weight)} of its ` +
          `attention to “${asked}”: the word that followed “${asker}” the first time.`
        : "All heads of all layers, each with a pattern of its own. Click one, or walk with the arrow keys.",
  },
  {
    view: "why",
    title: "Why that much?",
    isOfHead: true,
    targets: ["#view-why .why-head", "#view-why .card"],
    look: lookingBack,
    say: ({ back, asker, asked }) =>
      back
        ? `The query of “${asker}” and the key of “${asked}” are multiplied, number by number, and summed: a ` +
          `score. Softmax over all scores makes it the weight ${format(back.weight, 3)}. Scroll through the steps; ` +
          "all numbers are real."
        : "A query and a key are multiplied, number by number, and summed: a score. Softmax over all scores makes " +
          "them weights. Scroll through the steps; all numbers are real.",
  },
  {
    view: "contributions",
    title: "What the look brings",
    isOfHead: true,
    targets: ["#view-contributions .columns .card", "#view-contributions .card"],
    look: (facts) => ({ ...lookingBack(facts), contributions_target: facts.asked ? ` ${facts.asked}` : "",
      contributions_measure: "logit" }),
    say: ({ back, push, asked }) =>
      back && push !== null
        ? `A head carries what it saw into the query's vector. Here ${headOf(back)} takes “${asked}” along and so ` +
          `${push > 0 ? "adds" : "takes"} ${format(Math.abs(push), 3)} ${push > 0 ? "to" : "from"} the logit of ` +
          `“${asked}” as the next word.`
        : "A head carries what it saw into the query's vector. Every cell is one head: how much it pushes the next " +
          "word's logit up or down.",
  },
  {
    view: "lens",
    title: "How the answer grows",
    targets: ["#view-lens .card"],
    look: (facts) => ({ ...lookingBack(facts), lens_target: facts.asked ? ` ${facts.asked}` : "", lens_state: -1 }),
    say: sayOfLens,
  },
  {
    view: "next",
    title: "The dice",
    targets: ["#view-next .sliders", "#view-next .card"],
    look: lookingBack,
    say: () =>
      "In the end every token of the vocabulary has a probability, and one is drawn. Pull the temperature down: " +
      "the likeliest takes all. Pull it up, and all words come closer.",
  },
  {
    view: "attention",
    title: "Now with your words",
    targets: [".shared"],
    look: () => PLAIN,
    say: () =>
      "Write any text here; all views look at it. What you see is in the address, so a copied link shows a " +
      "colleague the same. “Copy as…” gives the request behind each picture.",
  },
];

/** Which layer first says what the model says in the end, and what came of the word that was looked back at. */
function sayOfLens({ rise, asked }) {
  const general =
    "Every row is a layer: what it would say next if it were the last. Low down that is a guess from the word " +
    "alone; higher up the text around it is used.";
  if (!rise) return general;
  const count = rise.chances.length;
  const [beforeLast, atLast] = [rise.chances[count - 2], rise.chances[count - 1]];
  return `${general} In the last column “${asked}” has ${percent(beforeLast)} before the last layer and ${percent(atLast)} after it${
    rise.best[count - 1] === asked ? ": the answer" : `; “${rise.best[count - 1]}” is the best guess`
  }.`;
}
