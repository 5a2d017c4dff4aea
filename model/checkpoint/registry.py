"""Lists the supported architectures, and reads a folder's config.json into a ModelConfig with their families."""

import difflib
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from lightwell.model.checkpoint.families import (
    bert,
    encoder_decoders,
    gemma,
    gpt,
    hybrids,
    llama,
    mixtures,
    modern_berts,
    smollm3,
)
from lightwell.model.checkpoint.families.family import Family
from lightwell.model.checkpoint.families.fields import Fields, read_object
from lightwell.model.checkpoint.families.output_heads import NO_HEAD, SUFFIX
from lightwell.model.checkpoint.folder import GGUF_NAME, ModelLoadError
from lightwell.model.checkpoint.quantized.scheme import read_scheme
from lightwell.model.checkpoint.tensor_listing import tensor_names
from lightwell.model.config import ModelConfig

_FILES = (llama, mixtures, smollm3, hybrids, gemma, gpt, bert, modern_berts, encoder_decoders)
"""The files of families, in the order of the architectures in errors."""
FAMILIES = tuple(each for file in _FILES for each in vars(file).values() if isinstance(each, Family))
_BY_NAME = {family.name: family for family in FAMILIES}


_TRAITS: tuple[tuple[re.Pattern[str], tuple[str, ...]], ...] = (
    (
        re.compile(r"mamba|rwkv|ssm|state_size|recurrent|conv_(kernel|l_cache)|linear_(num|key|attn)", re.I),
        (*hybrids.LFM2.architectures, hybrids.QWEN3_5.architectures[0]),
    ),
    (re.compile(r"expert", re.I), mixtures.QWEN3_MOE.architectures),
)
"""Expressions for the names of classes and fields, and the architectures to suggest for them, before those with a
similar name: networks with states, and with experts.
"""


ARCHITECTURES = {name: family for family in FAMILIES for name in family.architectures}
"""The family of each class of `transformers` that can be served."""


def family_of(config: ModelConfig) -> Family:
    """Return the family of a configuration."""
    return _BY_NAME[config.family]


def find_architecture(hf_config: Mapping[str, Any]) -> str:
    """Return the supported architecture of a parsed config.json.

    Raises ModelLoadError, with the nearest supported ones first, if there is none.
    """
    named = hf_config.get("architectures") or []
    if not isinstance(named, list):
        raise ModelLoadError(f"config.json: architectures is {named!r}; a list of names is expected")
    model_type = hf_config.get("model_type")
    for architecture, family in ARCHITECTURES.items():
        if architecture in named or (not named and model_type in family.model_types):
            return architecture
    first = ", ".join(family.architectures[0] for family in FAMILIES)
    found = ", ".join(map(str, named)) if named else f"model_type {model_type!r}"
    near = _near(hf_config, str(named[0]) if named else f"{model_type}ForCausalLM")
    meant = f"similar names are {', '.join(near)}; " if near else ""
    raise ModelLoadError(f"config.json: architecture {found} is not supported; {meant}supported are {first}")


def _near(hf_config: Mapping[str, Any], name: str) -> list[str]:
    """Return the nearest supported architectures of the same kind: by traits (`_TRAITS`), then by name."""
    kind = "encoder-decoder" if hf_config.get("is_encoder_decoder") is True else _kind_of(name)
    if isinstance(hf_config.get("text_config"), dict):  # a decoder that also reads images or sounds
        kind = "decoder"
    names = [name for name, family in ARCHITECTURES.items() if _kind_of(family.architectures[0]) == kind]
    told = " ".join([name.lower(), *(str(field) for field, value in hf_config.items() if value is not None)])
    alike = [each for trait, has in _TRAITS if trait.search(told) for each in has if each in names]
    return list(dict.fromkeys([*alike, *difflib.get_close_matches(name, names, n=3, cutoff=0.5)]))[:3]


def _kind_of(name: str) -> str:
    if name.endswith(("ForCausalLM", "LMHeadModel")):
        return "decoder"
    return "encoder-decoder" if name.endswith(("ForConditionalGeneration", "MTModel")) else "encoder"


def read_config(folder: Path) -> ModelConfig:
    """Read config.json and generation_config.json of a folder, or a configuration file of any name and the
    generation_config.json next to it, if it exists.

    Raises ModelLoadError, with the field and the value, for an unsupported architecture or option, and invalid files.
    """
    written = folder if folder.is_file() else folder / "config.json"
    hf = Fields(read_object(written))
    architecture = find_architecture(hf.values)
    family, scheme = ARCHITECTURES[architecture], read_scheme(hf)
    if scheme is not None and any(row.arrange == "transpose" for row in family.weights.rows):
        raise ModelLoadError(f"config.json: quantization_config is set; a {architecture} is supported only without it")
    generation = Fields.of_file(written.with_name("generation_config.json"))
    common = {
        "architecture": architecture,
        "family": family.name,
        "dtype": hf.dtype(),
        "stored_as": "gguf" if (written.parent / GGUF_NAME).is_file() else scheme and scheme.method,
        "bos_token_id": hf.optional_int("bos_token_id"),
        "eos_token_ids": tuple(dict.fromkeys(generation.ids("eos_token_id") + hf.ids("eos_token_id"))),
        "pad_token_id": hf.optional_int("pad_token_id"),
    }
    config = family.read(hf, common)
    for fields in (generation, hf) if config.kind != "encoder" else ():  # an encoder does not generate text
        if any(not 0 <= token_id < config.vocab_size for token_id in fields.ids("eos_token_id")):
            raise fields.refuse("eos_token_id", f"ids of the vocabulary, 0 to {config.vocab_size - 1}, are expected")
    config = _with_own_head(config, family.own_head, hf, written.parent)
    if architecture.endswith(SUFFIX):
        # The classifier replaces the head for words. Embedding models that were trained from such a class may lack it.
        head = family.read_classifier(hf) if _holds(written.parent, family, "classifier.weight") else None
        config = replace(config, classifier=head, has_head=False)
    # The architecture of some embedding models has a head for masked words that the files lack (all-mpnet-base-v2).
    if config.head_transform is not None and not _holds(written.parent, family, "head_transform.weight"):
        config = replace(config, **NO_HEAD)
    return config if config.encoder is None else _with_start(config, hf, generation)


def _with_own_head(config: ModelConfig, own_head: str | None, hf: Fields, folder: Path) -> ModelConfig:
    """Return the configuration with a tied head, if the family's files decide it and lack the head's tensor. Without
    files config.json decides, as in `transformers`.
    """
    if own_head is None or config.tie_word_embeddings:
        return config
    names = tensor_names(folder)
    is_tied = hf.flag("tie_word_embeddings", True) if names is None else own_head not in names
    return replace(config, tie_word_embeddings=is_tied)


def _holds(folder: Path, family: Family, weight: str) -> bool:
    """Return whether a folder's files hold a weight, or there are no files. weight: Lightwell's name."""
    names = tensor_names(folder)
    source = next(row.sources[0] for row in family.weights.rows if row.name == weight)
    owner = source.removesuffix("weight")  # a quantised matrix has tensors with other names
    return names is None or any(name.startswith(owner) for name in names)


def _with_start(config: ModelConfig, hf: Fields, generation: Fields) -> ModelConfig:
    """Return the configuration with the first tokens of an encoder-decoder's answer, and the tokens that are never
    generated.

    generation_config.json takes precedence; older checkpoints have the fields in config.json. The start is the first
    field of decoder_start_token_id, bos_token_id (as in transformers) and pad_token_id (T5).
    """
    written = Fields({**hf.values, **{k: v for k, v in generation.values.items() if v is not None}}, hf.file)
    starts = (written.optional_int(f"{name}_token_id") for name in ("decoder_start", "bos", "pad"))
    start = next((token_id for token_id in starts if token_id is not None), None)
    if start is None:
        raise hf.refuse("decoder_start_token_id", "the id that every answer starts with is expected")
    return replace(
        config,
        decoder_start_token_id=start,
        forced_bos_token_id=written.optional_int("forced_bos_token_id"),
        suppressed_token_ids=_suppressed(written),
    )


def _suppressed(written: Fields) -> tuple[int, ...]:
    """Return the single tokens among `bad_words_ids`, and `suppress_tokens`."""
    words = written.values.get("bad_words_ids") or []
    if not isinstance(words, list) or not all(isinstance(word, list) for word in words):
        raise written.refuse("bad_words_ids", "a list of lists of token ids is expected")
    single = Fields({"bad_words_ids": [word[0] for word in words if len(word) == 1]}, written.file)
    return tuple(dict.fromkeys(single.ids("bad_words_ids") + written.ids("suppress_tokens")))
