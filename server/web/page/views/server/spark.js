// A small line of the last values, the newest at the right.
import { html, useCallback } from "../../core/html.js";
import { line, path } from "../../parts/ink.js";
import { Picture } from "../../parts/picture.js";

const HEIGHT = 44;

/** values: the newest last; most: the number that fills the width. */
export function Spark({ values, most, label }) {
  const draw = useCallback(
    (context, { width, height: tall, colours }) => {
      const top = Math.max(...values, 1e-12);
      const places = values.map((value, i) =>
        [width - ((values.length - 1 - i) * width) / (most - 1), tall - 3 - (value / top) * (tall - 8)]);
      line(context, [[0, tall - 2.5], [width, tall - 2.5]], colours.line);
      if (values.length < 2) return;
      path(context, [[places[0][0], tall - 3], ...places, [width, tall - 3]]);
      context.fillStyle = colours.accent;
      context.globalAlpha = 0.15;
      context.fill();
      context.globalAlpha = 1;
      line(context, places, colours.accent, 1.5);
    },
    [values, most],
  );
  return html`<${Picture} draw=${draw} height=${HEIGHT} label=${label} />`;
}
