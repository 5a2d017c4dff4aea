// A small line of the last values, the newest at the right.
import { html, useCallback } from "../../core/html.js";
import { Picture } from "../../parts/picture.js";

/** values: the newest last; most: the number that fills the width; 0 is at the bottom. */
export function Spark({ values, most, label, height = 44 }) {
  const draw = useCallback(
    (context, { width, height: tall, colours }) => {
      const top = Math.max(...values, 1e-12);
      const xOf = (i) => width - ((values.length - 1 - i) * width) / (most - 1);
      const yOf = (value) => tall - 3 - (value / top) * (tall - 8);
      context.strokeStyle = colours.line;
      context.lineWidth = 1;
      context.beginPath();
      context.moveTo(0, tall - 2.5);
      context.lineTo(width, tall - 2.5);
      context.stroke();
      if (values.length < 2) return;
      context.fillStyle = colours.accent;
      context.globalAlpha = 0.15;
      context.beginPath();
      context.moveTo(xOf(0), tall - 3);
      values.forEach((value, i) => context.lineTo(xOf(i), yOf(value)));
      context.lineTo(width, tall - 3);
      context.closePath();
      context.fill();
      context.globalAlpha = 1;
      context.strokeStyle = colours.accent;
      context.lineWidth = 1.5;
      context.beginPath();
      values.forEach((value, i) => (i === 0 ? context.moveTo(xOf(i), yOf(value)) : context.lineTo(xOf(i), yOf(value))));
      context.stroke();
    },
    [values, most],
  );
  return html`<${Picture} draw=${draw} height=${height} label=${label} />`;
}
