"""Checks whether a model can be split over so many ranks. It knows counts; it never imports torch, as `lightwell size`
uses it too.
"""

from collections.abc import Iterable

from model.checkpoint.folder import ModelLoadError
from model.config import ModelConfig


def check_split(config: ModelConfig, size: int) -> None:
    """Raise ModelLoadError when a stack, or the encoder of an encoder-decoder, cannot be split over `size` ranks."""
    stacks = [each for each in (config, config.encoder) if each is not None]
    problem = _first_problem(stacks, size)
    if problem is None:
        return
    most = min(size - 1, *(each.num_heads for each in stacks))
    fits = next((n for n in range(most, 0, -1) if _first_problem(stacks, n) is None), 1)
    raise ModelLoadError(f"--tensor-parallel {size}: {problem}; {fits} is accepted")


def _first_problem(stacks: Iterable[ModelConfig], size: int) -> str | None:
    return next((found for each in stacks if (found := why_not_split(each, size)) is not None), None)


def why_not_split(config: ModelConfig, size: int) -> str | None:
    """Return why a stack cannot be split over `size` ranks, or None if it can."""
    heads, kv = config.num_heads, config.num_kv_heads
    problems = [
        f"{count} {what}, which {size} does not divide"
        for what, count in (("attention heads", heads), ("neurons in its mlp", config.intermediate_size))
        if count % size
    ]
    if config.experts is not None and size > 1:
        problems.append("experts, which are not divided")
    if config.attention_sinks and size > 1:
        problems.append("attention sinks, which are not divided")
    if config.attention_gate and size > 1:
        problems.append("gates of attention, which are not divided")
    if config.recurrence is not None and size > 1:
        problems.append("layers without attention, and their states are not divided")
    is_of_several = not config.layers_are_alike or config.num_kv_shared_layers or config.per_layer_size or config.altup
    if is_of_several and size > 1:
        problems.append("layers of several kinds, which are not divided")
    if kv % size and size % kv:
        problems.append(f"{kv} key heads, which neither divide {size} nor are divided by it")
    if -(-config.vocab_size // size) * (size - 1) >= config.vocab_size:
        problems.append(f"{config.vocab_size} words, too few for {size} processes")
    return f"{config.architecture} has {'; '.join(problems)}" if problems else None
