"""Sampling parameters of one request. The API process validates them."""

import msgspec


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Sampling parameters of one request, in the terms of OpenAI and vLLM.

    Stop *strings* are not here: text exists only in the API process, which aborts the request when one appears.
    """

    max_tokens: int
    """Most tokens to generate (already clipped to the room left in the context)."""
    seed: int
    """Seed of the random numbers, which are keyed by (seed, position). It is always set: the API process draws one
    if the user gave none.
    """
    temperature: float = 1.0
    """Sampling temperature; 0 is greedy: the largest logit, the lowest token id among equals."""
    top_p: float = 1.0
    top_k: int = 0
    """How many of the most likely tokens to keep; 0 keeps every token."""
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    min_tokens: int = 0
    """Least tokens to generate: end-of-text and stop tokens cannot be chosen before."""
    eos_token_ids: tuple[int, ...] = ()
    """The model's end-of-text ids; ignored when `ignore_eos`."""
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    """Number of alternatives to report with each token; 0 reports the chosen token only, None nothing."""
    logprob_token_ids: tuple[int, ...] = ()
    """Tokens to report with each token, in this order, in place of the most likely alternatives of `logprobs`."""
    prompt_logprobs: int | None = None
    """Number of alternatives to report with each of the prompt's tokens, as in `logprobs`."""

    speculation: bool = True
    """False turns drafts of the next tokens off. The text is the same."""

    @property
    def stopping_ids(self) -> frozenset[int]:
        """Return every token id that ends the request when it is chosen."""
        eos = () if self.ignore_eos else self.eos_token_ids
        return frozenset(eos) | frozenset(self.stop_token_ids)

    def edits_logits(self, num_generated: int = 0) -> bool:
        """Return whether penalties, biases or bans change the logits of the token after `num_generated`. If False for
        the first token, it is False for all. This is the only list of the parameters that change logits.
        """
        return bool(
            self.repetition_penalty != 1.0
            or self.presence_penalty
            or self.frequency_penalty
            or self.logit_bias
            or num_generated < self.min_tokens
        )

    @property
    def takes_largest_logit(self) -> bool:
        """Return whether every token is the one with the largest unedited logit, without log-probabilities."""
        return not self.temperature and not self.edits_logits() and self.logprobs is None
