// A card to share: a title, a sentence and the picture that takes most of the window, as a PNG of 1200 x 630 pixels.
import { palette } from "../core/theme.js";
import { fill } from "./ink.js";

const [WIDE, TALL, EDGE] = [1200, 630, 56];

function pictureSeen() {
  const seen = (canvas) => {
    const { width, top, bottom } = canvas.getBoundingClientRect();
    return width * (Math.min(bottom, innerHeight) - Math.max(top, 0));
  };
  const [largest] = [...document.querySelectorAll("main canvas")].sort((a, b) => seen(b) - seen(a));
  return [...(largest?.parentElement.querySelectorAll("canvas") ?? [])].filter(({ width }) => width);
}

/** Write a text in at most `most` lines; returns the place below it. */
function write(context, text, y, size, most, colour, weight = 400) {
  context.font = `${weight} ${size}px system-ui, sans-serif`;
  context.fillStyle = colour;
  const lines = [""];
  for (const word of text.split(/\s+/)) {
    const longer = `${lines.at(-1)} ${word}`;
    if (lines.at(-1) && context.measureText(longer).width > WIDE - 2 * EDGE) lines.push(word);
    else lines[lines.length - 1] = longer.trim();
  }
  if (lines.length > most) lines[most - 1] += " …";
  lines.slice(0, most).forEach((line, i) => context.fillText(line, EDGE, y + (i + 1) * 1.25 * size, WIDE - 2 * EDGE));
  return y + Math.min(lines.length, most) * 1.25 * size;
}

/** The card as a PNG blob; sentence: below the title; source: the line at the end. */
export function cardOf(title, sentence, source) {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [WIDE, TALL];
  const context = canvas.getContext("2d");
  const { paper, ink, muted, glow } = palette();
  fill(context, 0, 0, WIDE, TALL, paper);
  fill(context, 0, 0, WIDE, 12, glow);
  const picture = pictureSeen();
  const below = write(context, title, 30, 42, 2, ink, 700) + 4;
  const top = write(context, sentence, below, 28, picture.length ? 2 : 12, muted) + 24;
  for (const one of picture) {
    const room = TALL - 72 - top;
    const scale = Math.min((WIDE - 2 * EDGE) / one.width, room / one.height);
    const [wide, tall] = [one.width * scale, one.height * scale];
    context.drawImage(one, (WIDE - wide) / 2, top + (room - tall) / 2, wide, tall);
  }
  write(context, source, TALL - 58, 22, 1, muted, 600);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}
