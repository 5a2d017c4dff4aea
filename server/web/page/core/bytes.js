// Tokens that are parts of a character decode to U+FFFD. Their bytes are found from the text that they are part of.

const BROKEN = "\ufffd";
const MOST_BYTES = 64; // of tokens that share characters
const shared = new WeakMap(); // by list of names: the groups of tokens that form one character
const writer = new TextEncoder();
const reader = new TextDecoder("utf-8", { ignoreBOM: true });

/** Groups of tokens returned by `named` that share characters: [{first, end, text}], end exclusive. */
export const charactersOf = (tokens) => shared.get(tokens) ?? [];

/**
 * The tokens with parts of a character named by their bytes: "é" as two tokens is "<C3>", "<A9>". offsets: the span
 * [begin, end) of each token, in characters. Parts with unknown bytes are unchanged.
 */
export function named(tokens, offsets, text) {
  if (typeof text !== "string" || !offsets || !tokens.some((token) => token.includes(BROKEN))) return tokens;
  const characters = Array.from(text);
  const names = [...tokens];
  const groups = [];
  for (let first = 0, end; first < tokens.length; first = end) {
    end = first + 1;
    while (end < tokens.length && offsets[end][0] < offsets[end - 1][1]) end += 1; // they share a character
    const own = tokens.slice(first, end);
    if (!own.some((token) => token.includes(BROKEN))) continue;
    const [begin, stop] = [offsets[first][0], offsets[end - 1][1]];
    const cut = (from) => characters.slice(from, stop).join("");
    const written = (from) => namesOf(own, writer.encode(cut(from)));
    // some tokenizers leave the space before a word out of its span
    const found = written(begin) ?? (characters[begin - 1] === " " ? written(begin - 1) : null);
    found?.forEach((name, i) => (names[first + i] = name));
    if (found && end - first > 1) groups.push({ first, end, text: cut(begin) });
  }
  shared.set(names, groups);
  return names;
}

function namesOf(tokens, bytes) {
  const ends = bytes.length <= MOST_BYTES ? endsOf(tokens, bytes, 0) : null;
  return ends && tokens.map((token, i) => nameOf(token, bytes.subarray(ends[i - 1] ?? 0, ends[i])));
}

/** The end of each token if each part of the bytes decodes to its token; else null. */
function endsOf(tokens, bytes, begin) {
  if (tokens.length === 0) return begin === bytes.length ? [] : null;
  for (let end = begin + 1; end <= bytes.length; end += 1) {
    if (reader.decode(bytes.subarray(begin, end)) !== tokens[0]) continue;
    const rest = endsOf(tokens.slice(1), bytes, end);
    if (rest) return [end, ...rest];
  }
  return null;
}

/** A token's text with its incomplete characters as bytes: <E2>. */
function nameOf(token, bytes) {
  if (!token.includes(BROKEN) || writer.encode(token).length === bytes.length) return token; // U+FFFD is in the text itself
  const parts = token.split(BROKEN);
  const before = writer.encode(parts[0]).length;
  const after = writer.encode(parts.at(-1)).length;
  const hex = Array.from(bytes.subarray(before, bytes.length - after), (byte) => byte.toString(16).padStart(2, "0"));
  return `${parts[0]}<${hex.join(" ").toUpperCase()}>${parts.at(-1)}`;
}
