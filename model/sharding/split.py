"""Check whether a model can be split over several ranks. `lightwell size` uses it too, so it never imports torch."""

from lightwell.model.checkpoint.folder import ModelLoadError
from lightwell.model.config import ModelConfig


def check_split(config: ModelConfig, size: int) -> None:
    """Raise ModelLoadError when a stack, or the encoder of an encoder-decoder, cannot be split over `size` ranks."""
    stacks = [each for each in (config, config.encoder) if each is not None]

    def find_problem(size: int) -> str | None:
        return next(filter(None, (why_not_split(each, size) for each in stacks)), None)

    problem = find_problem(size)
    if problem is not None:
        most = min(size - 1, *(each.num_heads for each in stacks))
        fits = next((n for n in range(most, 0, -1) if find_problem(n) is None), 1)
        raise ModelLoadError(f"--tensor-parallel {size}: {problem}; {fits} is accepted")


def why_not_split(config: ModelConfig, size: int) -> str | None:
    """Return the reasons why a stack cannot be split over `size` ranks, or None if it can."""
    kv = config.num_kv_heads
    has_several_kinds = bool(
        not config.layers_are_alike or config.num_kv_shared_layers or config.per_layer_size or config.altup
    )
    undivided = {
        "experts, which are not divided": config.experts is not None,
        "attention sinks, which are not divided": config.attention_sinks,
        "gates of attention, which are not divided": config.attention_gate,
        "layers without attention, and their states are not divided": config.recurrence is not None,
        "layers of several kinds, which are not divided": has_several_kinds,
    }
    problems = {
        f"{config.num_heads} attention heads, which {size} does not divide": config.num_heads % size,
        f"{config.intermediate_size} neurons in its mlp, which {size} does not divide": config.intermediate_size % size,
        **(undivided if size > 1 else {}),
        f"{kv} key heads, which neither divide {size} nor are divided by it": kv % size and size % kv,
        f"{config.vocab_size} words, too few for {size} processes": (
            -(-config.vocab_size // size) * (size - 1) >= config.vocab_size
        ),
    }
    found = "; ".join(problem for problem, is_there in problems.items() if is_there)
    return f"{config.architecture} has {found}" if found else None
