// Conversion between tokens and texts: the text of a list of token ids, and whether it is tokenized to the same ids.
import { askJson } from "./api.js";

/** The text of the ids, without special tokens, and whether the tokenizer returns the same ids for it. */
export async function textOf(ids, options) {
  const { prompt: text } = await askJson("detokenize", { tokens: ids, skip_special_tokens: true }, options);
  if (text === "") return { text, isSame: ids.length === 0 };
  const { tokens } = await askJson("tokenize", { prompt: text }, options);
  return { text, isSame: tokens.length === ids.length && tokens.every((id, i) => id === ids[i]) };
}

export async function countOf(text) {
  return (await askJson("tokenize", { prompt: text })).count;
}

/** A piece in the middle of a text: without special tokens. */
export async function piecesOf(text) {
  const body = { prompt: text, add_special_tokens: false, return_token_strs: true };
  const { tokens: ids, token_strs: tokens } = await askJson("tokenize", body);
  return { ids, tokens };
}
