"""Reads texts and pairs of texts into prompts, a group at a time, as sentence-transformers' CrossEncoder does: with the
prompts and the template of the model's folder, and cut to the limits. Independent of engine and answers.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lightwell.model.network.cross_encoder import ScoreDefaults
from lightwell.model.network.sentence_transformers import EmbeddingDefaults
from lightwell.model.tokenization.chat_template import ChatTemplateError
from lightwell.model.tokenization.tokenizer import Encoding
from lightwell.server.generation.prompts.prompt import Prompt, check_tokens, packed
from lightwell.server.generation.prompts.text_parts import Keep, bounded, part_for
from lightwell.server.generation.served_model import ServedModel
from lightwell.server.http.errors import BadRequest, shown
from lightwell.server.schemas.base import encodable

Texts = tuple[str, ...]
"""One text, or the two of a pair."""

_FILLERS = ("0", "1 2 3 4")
"""The texts with which sentence-transformers finds the end that a chat template writes after a pair."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The limits of texts, and the cut of longer ones."""

    limit: int
    """Most tokens of an input, special ones included."""
    is_allowed: bool
    """Whether longer inputs are cut; otherwise they are refused."""
    keep: Keep = "start"
    text_limits: tuple[int | None, int | None] = (None, None)
    """Most tokens of the first and of the second text, None for any number: longer ones are always cut."""


@dataclass(kw_only=True)
class Reader:
    """Reads the inputs of one request."""

    model: ServedModel
    defaults: ScoreDefaults | EmbeddingDefaults
    """How the texts are written."""
    cut: Cut
    name_of: Callable[[int], str]
    """Returns the field of an input, by its number."""
    prompt: str = ""
    """The text before each first text."""
    add_special_tokens: bool = True
    _parts: dict[tuple[str, int | None], str] = field(default_factory=dict)
    """The parts of long texts that are read."""
    _suffix: list[int] | None = None

    async def read(self, first: int, group: Sequence[Texts]) -> list[Prompt]:
        """Return a group of inputs, numbered from `first`, as prompts. Raises BadRequest."""
        written = await asyncio.to_thread(self._all_written, first, group)
        pairs = [i for i, texts in enumerate(written) if len(texts) == 2]
        if isinstance(self.defaults, ScoreDefaults) and self.defaults.has_messages and pairs:
            if self.cut.keep == "end":
                raise BadRequest(
                    "truncation_side: the chat template of this model formats pairs, so only their end can be cut; "
                    "right is accepted.",
                    param="truncation_side",
                )
            rendered = [await self._rendered(first + i, written[i]) for i in pairs]
            suffix = await self._suffix_ids(written[pairs[0]]) if self.cut.is_allowed else []
            singles = [i for i, texts in enumerate(written) if len(texts) == 1]

            def encode() -> list[Prompt]:
                of_pairs = self._encode_rendered([first + i for i in pairs], rendered, suffix)
                of_singles = self._encode([first + i for i in singles], [written[i] for i in singles])
                found = dict(zip([*pairs, *singles], [*of_pairs, *of_singles], strict=True))
                return [found[i] for i in range(len(written))]

            return await asyncio.to_thread(encode)
        return await asyncio.to_thread(self._encode, range(first, first + len(written)), written)

    def _all_written(self, first: int, group: Sequence[Texts]) -> list[Texts]:
        """Return the texts of a group, with the folder's prompt, each cut to the part that is tokenised."""
        has_messages = isinstance(self.defaults, ScoreDefaults) and self.defaults.has_messages
        prompt = "" if has_messages else self.prompt  # the template writes it
        limits, written = self.cut.text_limits, []
        for number, (text, *others) in enumerate(group, first):
            name, own = self.name_of(number), (prompt + text, *others)
            written.append(tuple(self._part(each, name, limit) for each, limit in zip(own, limits, strict=False)))
        if all(limit is None for limit in limits):
            return written
        columns = [
            texts if limit is None else self._cut_texts(texts, limit)
            for texts, limit in zip(zip(*written, strict=True), limits, strict=False)
        ]
        return list(zip(*columns, strict=True))

    def _part(self, text: str, name: str, limit: int | None) -> str:
        """Return the part of a text that is read, which is cached for other inputs with the text."""
        cut, key = self.cut, (text, limit)
        if key in self._parts:
            return self._parts[key]
        keep: Keep | None = cut.keep if cut.is_allowed else None
        if limit is not None:  # the text is always cut to it, at its end
            keep = "start"
        part = bounded(self.model, text, name, keep)
        part = part.lower() if self.defaults.lowercase else part
        if keep is not None:
            num_tokens = cut.limit + 1 if limit is None else min(limit, cut.limit + 1)
            part = part_for(self.model.tokenizer, part, num_tokens, keep)
        if len(part) < len(text):
            self._parts[key] = part
        return part

    def _cut_texts(self, texts: Sequence[str], limit: int) -> list[str]:
        """Return the beginning of each text, `limit` tokens long."""
        distinct = list(dict.fromkeys(texts))
        encodings = self.model.tokenizer.encode_batch(distinct, add_special_tokens=False)
        cut = {
            text: text if len(encoding.ids) <= limit else text[: encoding.offsets[limit - 1][1]]
            for text, encoding in zip(distinct, encodings, strict=True)
        }
        return [cut[text] for text in texts]

    # ---- tokens

    def _encode(self, numbers: Sequence[int], group: Sequence[Texts]) -> list[Prompt]:
        """Return the inputs with these numbers as prompts; singles and pairs may be mixed."""
        tokenizer, cut = self.model.tokenizer, self.cut
        pairs = [(texts[0], texts[1]) for texts in group if len(texts) == 2]
        try:
            of_pairs = iter(
                tokenizer.encode_pairs(pairs, cut.limit if cut.is_allowed else None, keep_ends=cut.keep == "end")
            )
        except ValueError as error:  # no room next to the special tokens; the texts were checked before
            raise BadRequest(f"truncate_prompt_tokens: {error}.", param="truncate_prompt_tokens") from None
        singles = [texts[0] for texts in group if len(texts) == 1]
        of_singles = iter(tokenizer.encode_batch(singles, self.add_special_tokens))
        prompts = []
        for number, texts in zip(numbers, group, strict=True):
            if len(texts) == 2:
                pair = next(of_pairs)
                prompts.append(self._checked(number, pair.ids, pair.second_segment))
            else:
                prompts.append(self._checked(number, self._cut_single(next(of_singles))))
        return prompts

    def _cut_single(self, encoding: Encoding) -> list[int]:
        """Return the ids of one text; a longer one is cut between the special tokens around it."""
        excess = len(encoding.ids) - self.cut.limit
        if excess <= 0 or not self.cut.is_allowed:
            return encoding.ids
        own = [i for i, (start, end) in enumerate(encoding.offsets) if end > start] or [0]
        begin, end = own[0], own[-1] + 1
        if excess >= end - begin:
            raise BadRequest(
                f"truncate_prompt_tokens: {self.cut.limit} tokens are too few for this text; "
                f"{len(encoding.ids) - (end - begin) + 1} or more are accepted.",
                param="truncate_prompt_tokens",
            )
        if self.cut.keep == "start":
            return encoding.ids[: max(end - excess, 0)] + encoding.ids[end:]
        return encoding.ids[:begin] + encoding.ids[begin + excess :]

    def _checked(self, number: int, ids: Sequence[int], second_segment: int | None = None) -> Prompt:
        """Return an input's prompt. Raises BadRequest if it is empty or too long, or the network lacks a token."""
        name = self.name_of(number)
        if len(ids) > self.cut.limit:
            raise BadRequest(
                f"{name}: the input has {len(ids)} tokens, including special tokens and both texts of a pair; at "
                f"most {self.cut.limit} are accepted. Set truncate to cut it.",
                param=name,
                code="context_length_exceeded",
            )
        return check_tokens(self.model, Prompt(packed(ids), second_segment=second_segment), name)

    # ---- pairs that the chat template writes

    async def _rendered(self, number: int, texts: Texts) -> str:
        try:
            return encodable(await self._render(texts))
        except ChatTemplateError as error:
            name = self.name_of(number)
            raise BadRequest(f"{name}: the chat template rejects the pair: {error}", param=name) from error

    async def _render(self, texts: Sequence[str]) -> str:
        """Return a pair as the chat template writes it: messages of a query and a document."""
        defaults, template = self.defaults, self.model.chat_template
        assert isinstance(defaults, ScoreDefaults)
        if template is None:
            raise ChatTemplateError("the model has none; start the server with --chat-template")
        said = [("query", texts[0]), ("document", texts[1])]
        if self.prompt:
            said.insert(0, ("system", self.prompt))
        rows: list[dict[str, Any]] = [
            {"role": role, "content": [{"type": "text", "text": text}] if defaults.has_parts else text}
            for role, text in said
        ]
        arguments = dict(defaults.template_arguments)
        is_continued = bool(arguments.pop("add_generation_prompt", False))
        return await template.render_async(rows, is_continued, arguments)

    async def _suffix_ids(self, texts: Texts) -> list[int]:
        """Return the tokens after a pair in the template, which a cut pair keeps: the common end of two pairs."""
        if self._suffix is None:
            rendered = [await self._render([filler] * len(texts)) for filler in _FILLERS]
            both = [each.ids for each in self.model.tokenizer.encode_batch(rendered, add_special_tokens=False)]
            shortest = min(map(len, both))
            num_same = next((n for n in range(shortest) if both[0][-1 - n] != both[1][-1 - n]), shortest)
            self._suffix = both[0][len(both[0]) - num_same :] if num_same < shortest else []
        return self._suffix

    def _encode_rendered(self, numbers: Sequence[int], group: Sequence[str], suffix: Sequence[int]) -> list[Prompt]:
        encodings = self.model.tokenizer.encode_batch(group, add_special_tokens=False)
        prompts = []
        for number, encoding in zip(numbers, encodings, strict=True):
            ids = encoding.ids
            if self.cut.is_allowed and len(ids) > self.cut.limit:
                kept = suffix[-self.cut.limit :]
                ids = [*ids[: self.cut.limit - len(kept)], *kept]
            prompts.append(self._checked(number, ids))
        return prompts


def prompt_named(defaults: ScoreDefaults | EmbeddingDefaults, name: str | None) -> str:
    """Return the prompt before first texts with the request's name, or the default one. Raises BadRequest for a name
    that the model's files lack.
    """
    wanted = defaults.default_prompt_name if name is None else name
    if wanted is None:
        return ""
    if wanted not in defaults.prompts:
        known = ", ".join(map(repr, defaults.prompts)) or "this model has none: null"
        raise BadRequest(f"prompt_name: unknown prompt {shown(wanted)}; accepted: {known}.", param="prompt_name")
    return defaults.prompts[wanted]


def labelled(model: ServedModel, prompt: Prompt) -> Prompt:
    """Return the prompt as the head reads it: for a decoder without padding at its end."""
    ids = model.config.labelled_ids(prompt.ids)
    return prompt if len(ids) == len(prompt.ids) else replace(prompt, ids=packed(ids))
