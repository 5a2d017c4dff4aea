// Marks of the pictures: texts, lines, dots and frames, each with its whole style. They use only methods of SvgContext.

export const SANS = "system-ui, sans-serif";
export const MONO = "ui-monospace, monospace";

export function write(context, text, x, y, colour, { size = 12, weight = "", family = SANS, align = "left", baseline = "middle" } = {}) {
  context.font = `${weight} ${size}px ${family}`.trim();
  context.textAlign = align;
  context.textBaseline = baseline;
  context.fillStyle = colour;
  context.fillText(text, x, y);
}

export function path(context, points) {
  context.beginPath();
  points.forEach(([x, y], i) => (i ? context.lineTo(x, y) : context.moveTo(x, y)));
}

export function line(context, points, colour, width = 1) {
  path(context, points);
  context.strokeStyle = colour;
  context.lineWidth = width;
  context.stroke();
}

/** A filled arrow head that ends at [x, y], along the unit vector [right, down]. */
export function tip(context, [x, y], [right, down], long, wide, colour) {
  path(context, [[x, y], ...[1, -1].map((side) =>
    [x - right * long - side * down * wide, y - down * long + side * right * wide])]);
  context.fillStyle = colour;
  context.fill();
}

export function fill(context, x, y, wide, tall, colour) {
  context.fillStyle = colour;
  context.fillRect(x, y, wide, tall);
}

function circle(context, x, y, radius) {
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
}

export function dot(context, x, y, radius, colour) {
  circle(context, x, y, radius);
  context.fillStyle = colour;
  context.fill();
}

export function ring(context, x, y, radius, colour, width) {
  circle(context, x, y, radius);
  context.strokeStyle = colour;
  context.lineWidth = width;
  context.stroke();
}

export function frame(context, x, y, wide, tall, colour, width = 1) {
  context.strokeStyle = colour;
  context.lineWidth = width;
  context.strokeRect(x, y, wide, tall);
}

/** Call draw() with the origin at x, y and turned by a quarter, for texts that are read upwards. */
export function upwards(context, x, y, draw) {
  context.save();
  context.translate(x, y);
  context.rotate(-Math.PI / 2);
  draw();
  context.restore();
}
