// Colours for numbers: the sequential and the diverging map of styles/tokens.css, each for light and dark mode.
import { palette } from "./theme.js";

function tableOf(stops) {
  const table = new Uint8Array(256 * 3);
  for (let i = 0; i < 256; i += 1) {
    const place = (i / 255) * (stops.length - 1);
    const below = Math.min(Math.floor(place), stops.length - 2);
    for (let c = 0; c < 3; c += 1) {
      table[i * 3 + c] = Math.round(stops[below][c] + (stops[below + 1][c] - stops[below][c]) * (place - below));
    }
  }
  return table;
}

const TABLES = new Map();

/** 256 colours as flat RGB bytes. */
export function colourTable(kind, mode) {
  const key = `${kind} ${mode}`;
  if (!TABLES.has(key)) {
    const stops = palette()[`${kind}-${mode}`].split(" ");
    TABLES.set(key, tableOf(stops.map((stop) => [1, 3, 5].map((i) => parseInt(stop.slice(i, i + 2), 16)))));
  }
  return TABLES.get(key);
}

/** The place of a value in the table, 0 to 255. */
export function colourIndex(value, low, high) {
  if (!(high > low)) return 0;
  return Math.max(0, Math.min(255, Math.round(((value - low) / (high - low)) * 255)));
}

export function colourOf(value, low, high, kind, mode) {
  const table = colourTable(kind, mode);
  const i = colourIndex(value, low, high) * 3;
  return `rgb(${table[i]} ${table[i + 1]} ${table[i + 2]})`;
}

/** Black or white, the one with the greater contrast to the colour. */
export function inkOn(value, low, high, kind, mode) {
  const table = colourTable(kind, mode);
  const i = colourIndex(value, low, high) * 3;
  // Relative luminance of WCAG 2; the contrast with black is (l + .05) / .05, with white 1.05 / (l + .05).
  const [red, green, blue] = [table[i], table[i + 1], table[i + 2]].map(linear);
  const luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  return (luminance + 0.05) ** 2 > 1.05 * 0.05 ? "#000" : "#fff";
}

const linear = (byte) => (byte <= 10 ? byte / 255 / 12.92 : ((byte / 255 + 0.055) / 1.055) ** 2.4);
