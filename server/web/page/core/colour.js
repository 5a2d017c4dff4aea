// Colours for numbers: one sequential and one diverging scale, each for light and dark mode.

// Stops are evenly spaced. Lightness is monotonic on each arm of a scale, so it is readable without colour vision.
const SEQUENTIAL = {
  light: [[252, 251, 247], [214, 226, 240], [148, 184, 222], [72, 128, 192], [28, 72, 142], [14, 30, 84]],
  dark: [[22, 25, 34], [52, 48, 92], [122, 62, 118], [204, 92, 88], [248, 156, 76], [255, 236, 170]],
};
const DIVERGING = {
  light: [[150, 66, 8], [224, 148, 84], [250, 249, 245], [110, 160, 214], [20, 66, 140]],
  // its middle is a grey that differs from the dark page, so that a number near 0 differs from an empty cell
  dark: [
    [255, 190, 120], [228, 142, 72], [180, 112, 60], [132, 96, 74], [76, 80, 92],
    [72, 104, 150], [74, 132, 204], [106, 164, 240], [160, 208, 255],
  ],
};

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

/** 256 colours as flat RGB bytes; `kind` is "sequential" (0 to 1) or "diverging" (-1 to 1), `mode` light or dark. */
export function colourTable(kind, mode) {
  const key = `${kind} ${mode}`;
  if (!TABLES.has(key)) TABLES.set(key, tableOf((kind === "diverging" ? DIVERGING : SEQUENTIAL)[mode]));
  return TABLES.get(key);
}

/** The place of a value in the table, 0 to 255; values outside [low, high] take the end's. */
export function colourIndex(value, low, high) {
  if (!(high > low)) return 0;
  return Math.max(0, Math.min(255, Math.round(((value - low) / (high - low)) * 255)));
}

export function colourOf(value, low, high, kind, mode) {
  const table = colourTable(kind, mode);
  const i = colourIndex(value, low, high) * 3;
  return `rgb(${table[i]} ${table[i + 1]} ${table[i + 2]})`;
}

/** Black or white, the one with the greater contrast to the colour: at least 4.58 for any colour. */
export function inkOn(value, low, high, kind, mode) {
  const table = colourTable(kind, mode);
  const i = colourIndex(value, low, high) * 3;
  // Relative luminance of WCAG 2; the contrast with black is (l + .05) / .05, with white 1.05 / (l + .05).
  const [red, green, blue] = [table[i], table[i + 1], table[i + 2]].map(linear);
  const luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  return (luminance + 0.05) ** 2 > 1.05 * 0.05 ? "#000" : "#fff";
}

/** Linear light of one sRGB byte, 0 to 1. */
const linear = (byte) => (byte <= 10 ? byte / 255 / 12.92 : ((byte / 255 + 0.055) / 1.055) ** 2.4);
