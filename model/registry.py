"""Which architectures can be served, and the family whose tables read each. Knows names only."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from model.folder import ModelLoadError

Family = Literal["llama", "gpt2"]


@dataclass(frozen=True, slots=True)
class Architecture:
    """A class of `transformers` whose checkpoints we read."""

    name: str
    family: Family
    """Chooses the reader of config.json and the table of weight names."""
    model_type: str
    """What config.json calls it when it names no architecture."""


ARCHITECTURES = (
    Architecture("LlamaForCausalLM", "llama", "llama"),
    Architecture("GPT2LMHeadModel", "gpt2", "gpt2"),
)


def find_architecture(hf_config: Mapping[str, Any]) -> Architecture:
    """The architecture that a parsed config.json names.

    Raises ModelLoadError, listing the supported ones, when it names none of them.
    """
    named = hf_config.get("architectures") or []
    if not isinstance(named, list):
        raise ModelLoadError(f"config.json: architectures is {named!r}; a list of names is expected")
    model_type = hf_config.get("model_type")
    for architecture in ARCHITECTURES:
        if architecture.name in named or (not named and architecture.model_type == model_type):
            return architecture
    found = ", ".join(map(str, named)) if named else f"model_type {model_type!r}"
    supported = ", ".join(architecture.name for architecture in ARCHITECTURES)
    raise ModelLoadError(f"config.json: architecture {found} is not supported; supported are {supported}")
