// The words of a text, made of its tokens, and the attention head with the strongest look at one of them.

import { shownToken } from "../../core/model.js";

const JOINS = /^['’]?[\p{L}\p{M}\p{N}]/u;
const ENDS = /[\p{L}\p{M}\p{N}]$/u;
// Scripts without spaces between words: each token stays a word of its own.
const UNSPACED = /[\p{sc=Han}\p{sc=Hiragana}\p{sc=Katakana}\p{sc=Thai}\p{sc=Lao}\p{sc=Khmer}\p{sc=Myanmar}]/u;

/** [{text, first, end, isWord}]: tokens of letters without a space between them are one word. Special tokens are no words. */
export function wordsOf(tokens, offsets, text) {
  const characters = Array.from(text);
  const cut = (begin, end) => characters.slice(begin, end).join("");
  const words = [];
  tokens.forEach((token, i) => {
    const [begin, end] = offsets[i];
    const piece = cut(begin, end);
    const last = words.at(-1);
    const isSameCharacter = last && begin < last.to;
    const isSpaceBefore = last?.piece === " " && begin === last.to;
    const isSameWord = last && begin === last.to && ENDS.test(last.text) && JOINS.test(piece) && !UNSPACED.test(piece);
    if (end > begin && (isSameCharacter || isSpaceBefore || isSameWord)) {
      Object.assign(last, { end: i + 1, to: end, piece, text: cut(last.from, end).trim() });
    } else {
      words.push({ first: i, end: i + 1, from: begin, to: end, piece, text: piece.trim() || shownToken(token) });
    }
  });
  return words.map(({ first, end, text: name, from, to }) => {
    return { first, end, text: name, isWord: to > from && /[\p{L}\p{N}]/u.test(name) };
  });
}

const mostWords = () => (innerWidth < 600 ? 16 : 32);

/** Around the one that looks (-1: it is in another text). */
export function shownOf(words, from) {
  const most = mostWords();
  const end = Math.min(words.length, Math.max(most, from + most / 4));
  return { begin: Math.max(0, end - most), end };
}

/**
 * The largest weight in the upper half of the layers, where heads follow meaning more than places. Left out are words that are
 * not shown, the first token, which often gets unused weight, the word that looks, its neighbours, and signs. key: the position
 * of the word's strongest token. from: the index of the word that looks, -1 if it is in another text.
 */
export function strongestHead(entry, words, from) {
  const { layers, heads, shape, arrays: { attention: { data } } } = entry;
  const numKeys = shape.at(-1);
  const { begin, end } = shownOf(words, from);
  const isFar = (i) => from < 0 || Math.abs(i - from) > 1;
  const among = (allows) => words.flatMap((word, i) => (i >= begin && i < end && allows(word, i) ? [i] : []));
  const isOther = (word, i) => word.isWord && i !== from;
  const isGood = (word, i) => isOther(word, i) && isFar(i) && (from < 0 || word.first > 0);
  const choices = [isGood, isOther, () => true].map(among).find((list) => list.length);
  const sumOf = (row, { first, end }) => {
    let sum = 0;
    for (let key = first; key < end; key += 1) sum += data[row * numKeys + key];
    return sum;
  };
  let found = { weight: -1 };
  for (let row = Math.floor(layers.length / 2) * heads.length; row < layers.length * heads.length; row += 1) {
    for (const best of choices) {
      const weight = sumOf(row, words[best]);
      if (weight > found.weight) found = { weight, row, best };
    }
  }
  const { row, best } = found;
  let key = words[best].first;
  for (let other = key + 1; other < words[best].end; other += 1) {
    if (data[row * numKeys + other] > data[row * numKeys + key]) key = other;
  }
  return {
    layer: layers[Math.floor(row / heads.length)], head: heads[row % heads.length], best, key,
    weights: words.map((word) => sumOf(row, word)),
  };
}
