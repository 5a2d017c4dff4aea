// Buttons with a small picture and a name for screen readers.
import { classes, html } from "../../core/html.js";

const PATHS = {
  send: "M12 19V5m-6 6 6-6 6 6",
  stop: "M7 7h10v10H7z",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  edit: "M4 20h4L19 9l-4-4L4 16z",
  again: "M5 12a7 7 0 1 1 2 5M5 20v-4h4",
  remove: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
  xray: "M3 12s3.500-6 9-6 9 6 9 6-3.500 6-9 6-9-6-9-6zM12 9.500a2.500 2.500 0 1 0 0 5 2.500 2.500 0 0 0 0-5",
  before: "M15 5l-7 7 7 7",
  after: "M9 5l7 7-7 7",
  down: "M12 5v14m-6-6 6 6 6-6",
  add: "M12 5v14M5 12h14",
  list: "M4 6h16M4 12h16M4 18h16",
  settings: "M4 8h9M19 8h1M16 5v6M4 16h1M11 16h9M8 13v6",
  attach: "M8 12l6-6a3 3 0 0 1 4 4l-8 8a5 5 0 0 1-7-7l7-7",
  more: "M5 12h.01M12 12h.01M19 12h.01",
  play: "M7 5l11 7-11 7z",
};

export const Icon = ({ of }) => html`<svg class="icon" viewBox="0 0 24 24" aria-hidden="true"><path d=${PATHS[of]} /></svg>`;

export const IconButton = ({ icon, label, class: more, ...others }) =>
  html`<button type="button" class=${classes("icon-button quiet", more)} aria-label=${label} title=${label} ...${others}>
    <${Icon} of=${icon} /></button>`;
