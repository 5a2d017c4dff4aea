// The steps as a table with the same numbers as the arrows.
import { classes, html } from "../../core/html.js";
import { format } from "../../core/numbers.js";
import { Headings } from "../../parts/headings.js";
import { progressAt, useCurrent } from "./player.js";

const where = (step) => (step.layer === null || step.layer === undefined || step.kind === "state" ? "" : step.layer);

export function StepsTable({ way, player, space }) {
  const own = way.steps.length;
  const reads = way.steps.some((step) => step.reads);
  const done = Math.min(own, useCurrent(player, own));
  const go = (i) => player.seek(progressAt(i + 1, own));
  return html`<div class="motion-table" tabindex="0" role="region" aria-label=${`Steps${way.title ? ` of ${way.title}` : ""}`}>
    <table class="plain-table">
      <caption>${way.title && `${way.title}. `}In the ${space}: the part of the length that the thick arrow
        shows.</caption>
      <${Headings} names=${["step", "what is added", "layer", "length", `in the ${space}`, "left to the end",
        ...(reads ? ["the lens reads"] : [])]} />
      <tbody>${way.steps.map((step, i) => html`<tr class=${classes(i === done - 1 && "current")}>
        <td><button class="plain" aria-label=${`Go to step ${i + 1}`} onClick=${() => go(i)}>${i + 1}</button></td>
        <th scope="row">${step.what}</th>
        <td class="number">${where(step)}</td>
        <td class="number">${format(step.size)}</td>
        <td class="number">${format(step.size * Math.sqrt(step.share))}</td>
        <td class="number">${format(step.left)}</td>
        ${reads && html`<td>${step.reads?.join(", ")}</td>`}
      </tr>`)}</tbody>
    </table>
  </div>`;
}
