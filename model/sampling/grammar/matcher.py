"""Matcher of one text against its grammar: the tokens that may or must come next, and whether the text is complete.

llguidance does the work. No grammar and no text raises: a matcher that gave up has the reason in `error`, and the log
has llguidance's own message.
"""

import logging
from collections.abc import Sequence
from copy import copy

import numpy as np
from llguidance import LLMatcher, LLParserLimits
from numpy.typing import NDArray

from lightwell.model.sampling.grammar.checking import reason_of
from lightwell.model.sampling.grammar.thought_limit import Pieces, ThoughtCounter, ThoughtLimit, ids_of
from lightwell.model.sampling.grammar.vocabulary import Vocabulary

logger = logging.getLogger(__name__)

LIMITS = LLParserLimits(max_lexer_states=50_000, verbose_errors=False)
"""The limits of a grammar and of the work for each token: llguidance's own, except for the states of the lexer, which
take 1 to 2 kB each. Errors don't repeat the grammar.
"""


class GrammarMatcher:
    """The place of one text in its grammar. Only one thread at a time may use it."""

    def __init__(
        self,
        matcher: LLMatcher,
        vocab_size: int,
        forced: Sequence[int] | None = None,
        thought: ThoughtCounter | None = None,
    ) -> None:
        """Continue a text at the place of `matcher`, in a vocabulary of `vocab_size` tokens. `forced` are the tokens
        that must come next, if the matcher has consumed them already; None if they are not known yet. `thought` is the
        counter of the thought at the beginning of the text, if that has a limit.
        """
        self._thought = thought
        self._vocab_size = vocab_size
        self.matcher = matcher
        """llguidance's matcher, which has consumed the forced tokens."""
        self._forced: list[int] = list(forced or ())
        """The tokens that must come next."""
        if forced is None:
            self._look_ahead()

    @classmethod
    def compile(cls, grammar: str, vocabulary: Vocabulary) -> "GrammarMatcher":
        """Compile a grammar for a vocabulary (`model.sampling.grammar.vocabulary`). It takes milliseconds, in which
        Python's lock is free. Raises ValueError, with one line, for a grammar that llguidance refuses.
        """
        if not vocabulary.spells_bytes:
            grammar += '%llguidance {"no_forcing": true}\n'  # forced bytes may be no tokens
        matcher = LLMatcher(vocabulary.table, grammar, limits=LIMITS, log_level=0)
        if not matcher.is_error():
            matcher.compute_bitmask()  # the first one takes the longest, and copies share its result
        if matcher.is_error():
            raise ValueError(_reason(matcher))
        return cls(matcher, vocabulary.table.vocab_size)

    def copy(self) -> "GrammarMatcher":
        """Return another matcher at the same place."""
        return GrammarMatcher(self.matcher.deep_copy(), self._vocab_size, self._forced, copy(self._thought))

    def begun(self, vocabulary: Vocabulary, prefix: Pieces, limit: ThoughtLimit | None) -> "GrammarMatcher":
        """Return another matcher of the same grammar after the text `prefix`. It has an `error` if that breaks it."""
        matcher = self.matcher.deep_copy()
        matcher.reset()
        matcher.consume_tokens(ids_of(prefix, vocabulary.table))
        thought = None if limit is None else ThoughtCounter(limit, vocabulary.table, prefix)
        return GrammarMatcher(matcher, self._vocab_size, thought=thought)

    @property
    def is_complete(self) -> bool:
        """Return whether nothing may follow."""
        return not self._forced and self.matcher.is_stopped() and self.error is None

    @property
    def forced(self) -> Sequence[int]:
        """Return the tokens that must come next."""
        return self._forced

    @property
    def ends_with_forced(self) -> bool:
        """Return whether the text is complete after the forced tokens."""
        return self.matcher.is_stopped()

    @property
    def error(self) -> str | None:
        """Return why the text cannot be continued, in one line, or None if it can."""
        gave_up = self.matcher.is_stopped() and not self.matcher.is_accepting()
        return _reason(self.matcher) if gave_up or self.matcher.is_error() else None

    def allows(self, token_id: int) -> bool:
        """Return whether a token may come next. It takes microseconds; `forbidden` may take half a millisecond."""
        if self._forced:
            return self._forced[0] == token_id
        return self.matcher.validate_tokens([token_id]) == 1

    def forbidden(self) -> NDArray[np.bool_]:
        """Return whether each token may not come next, [V]."""
        if self._forced:
            only = np.ones(self._vocab_size, np.bool_)
            only[self._forced[0]] = False
            return only
        words = np.frombuffer(self.matcher.compute_bitmask(), np.uint8)
        return np.unpackbits(~words, count=self._vocab_size, bitorder="little").view(np.bool_)

    def accept(self, token_id: int) -> None:
        """Consume the next token. One that may not come next causes an `error`."""
        if self._forced and self._forced[0] == token_id:
            del self._forced[0]
        else:
            self.matcher.consume_token(token_id)
            if self._thought is not None:
                self._thought.take(token_id)
        if not self._forced:
            self._look_ahead()

    def take_forced(self, most: int) -> list[int]:
        """Consume and return at most `most` of the tokens that must come next."""
        taken, self._forced = self._forced[:most], self._forced[most:]
        return taken

    def _look_ahead(self) -> None:
        if not self.matcher.is_stopped():
            forced = self.matcher.compute_ff_tokens()
            self._forced = forced[: self.matcher.try_consume_tokens(forced)] if forced else []
        if self._thought is not None:
            for token_id in self._forced:
                self._thought.take(token_id)
            closing = self._thought.closing()
            closing = closing[: self.matcher.try_consume_tokens(closing)] if closing else []
            for token_id in closing:
                self._thought.take(token_id)
            self._forced += closing


def _reason(matcher: LLMatcher) -> str:
    message = matcher.get_error() or matcher.stop_reason()
    logger.warning("llguidance gave up: %s", " ".join(message.split()))
    is_stuck = "NoExtensionBias" in message
    return "no token of this model can continue an accepted text" if is_stuck else reason_of(message)
