// The ways on from Home: three buttons that keep the text, and links to some pictures.
import { html } from "../../core/html.js";
import { lackOf, useCapabilities } from "../../core/model.js";
import { linkTo, select, useSelection } from "../../core/state.js";

/** place: the head of the picture and its pair of words; undefined before they have come. */
export function Ways({ text, place }) {
  const capabilities = useCapabilities();
  const { change_open: isOpen } = useSelection();
  const draft = capabilities.chat ? { chat_draft: text } : {};
  const ways = [
    lackOf(capabilities, "/v1/completions")
      ? ["/v1/embeddings", "Compare texts", "as vectors of this model", { view: "embeddings" }]
      : ["/v1/completions", "Chat", "talk to the model about it", { view: "chat", ...draft }],
    ["/v1/explain", "Play the journey", "from this text to the next word", { view: "journey", ...place, journey_stop: "",
      journey_between: 0, journey_plays: true }],
    ["/v1/attention", "Edit the model", "switch this head off and compare", { ...place, change_open: !isOpen }],
  ];
  return html`<nav class="home-ways" aria-label="Ways on">${ways.map(([route, name, about, fields], i) => {
    const lack = lackOf(capabilities, route);
    const opens = "change_open" in fields && { id: "change", "aria-expanded": isOpen }; // gets the focus when the drawer closes
    return html`<button class=${i ? "" : "primary"} ...${opens || {}} disabled=${Boolean(lack)} title=${lack ?? about}
      onClick=${() => select({ text, ...fields }, { remember: true })}><b>${name}</b><span>${about}</span></button>`;
  })}</nav>`;
}

const contexts = (motion_word) => ({ view: "moves", moves_as: "arrows", motion_show: "contexts", motion_word, motion_texts: "" });
const IDEAS = [
  { route: "/v1/contributions", title: "One word, several meanings",
    about: "Each context moves the same word elsewhere: arrows show it.",
    links: [["mole", contexts("mole")], ["Harry", contexts("Harry")], ["king", contexts("king")], ["car", contexts("car")]] },
  { route: "/v1/contributions", title: "Tower + Eiffel + miniature",
    about: "Two more words, and the vector of “tower” becomes another one.",
    links: [["add the words", contexts("tower")]] },
  { route: "/v1/next", title: "Softmax of your own numbers", about: "Type logits, move the temperature, and see the probabilities.",
    links: [["own logits", { view: "next", next_logits_first: true }]] },
];

export function Ideas() {
  const capabilities = useCapabilities();
  useSelection(); // the links keep the rest of the address
  return html`<section class="home-ideas"><h2>Ideas to try</h2>
    <ul>${IDEAS.filter(({ route }) => !lackOf(capabilities, route)).map(({ title, about, links }) => html`<li class="card">
      <h3>${title}</h3><p>${about}</p>
      <p>${links.map(([name, fields]) => html`<a class="button" href=${linkTo(fields)}
        onClick=${() => scrollTo(0, 0)}>${name}</a>${" "}`)}</p></li>`)}</ul></section>`;
}
