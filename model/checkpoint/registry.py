"""Lists the architectures that can be served, and turns a model folder's config.json into a ModelConfig. It knows names
and files; what the fields mean is up to the families.
"""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from model.checkpoint.families import (
    bart,
    bert,
    gemma,
    gemma3n,
    gemma4,
    gpt2,
    gpt_neox,
    gpt_oss,
    granite,
    jina_bert,
    lfm2,
    llama,
    mixtures,
    modernbert,
    nomic_bert,
    olmo2,
    opt,
    qwen3_5,
    smollm3,
    t5,
)
from model.checkpoint.families.family import Family
from model.checkpoint.families.fields import Fields, read_object
from model.checkpoint.families.output_heads import NO_HEAD, SUFFIX
from model.checkpoint.folder import GGUF_NAME, ModelLoadError
from model.checkpoint.quantized.scheme import read_scheme
from model.checkpoint.tensor_names import tensor_names
from model.config import ModelConfig

_FILES = (
    llama, mixtures, qwen3_5, gpt_oss, smollm3, granite, lfm2, gemma, gemma3n, gemma4, olmo2, gpt2, gpt_neox, opt, bert,
    modernbert, nomic_bert, jina_bert, t5, bart,
)  # fmt: skip
"""The files of families, in the order in which errors list their architectures."""
FAMILIES = tuple(each for file in _FILES for each in vars(file).values() if isinstance(each, Family))
_BY_NAME = {family.name: family for family in FAMILIES}


_TRAITS: tuple[tuple[re.Pattern[str], tuple[str, ...]], ...] = (
    (
        re.compile(r"mamba|rwkv|ssm|state_size|recurrent|conv_(kernel|l_cache)|linear_(num|key|attn)", re.I),
        (*lfm2.LFM2.architectures, qwen3_5.QWEN3_5.architectures[0]),
    ),
    (re.compile(r"expert", re.I), mixtures.QWEN3_MOE.architectures),
)
"""Traits by which a network is nearer to another than by the spelling of its name, as names of classes and fields tell
them, each with the architectures that have it: layers that keep a state, and experts.
"""


@dataclass(frozen=True, slots=True)
class Architecture:
    """A class of `transformers` whose checkpoints we read, and its family."""

    name: str
    family: Family


ARCHITECTURES = tuple(Architecture(name, family) for family in FAMILIES for name in family.architectures)


def family_of(config: ModelConfig) -> Family:
    """Return the family whose reader made `config`."""
    return _BY_NAME[config.family]


def find_architecture(hf_config: Mapping[str, Any]) -> Architecture:
    """Return the architecture that a parsed config.json names.

    Raises ModelLoadError, with the nearest supported ones first, when it names none of them.
    """
    named = hf_config.get("architectures") or []
    if not isinstance(named, list):
        raise ModelLoadError(f"config.json: architectures is {named!r}; a list of names is expected")
    model_type = hf_config.get("model_type")
    for architecture in ARCHITECTURES:
        if architecture.name in named or (not named and model_type in architecture.family.model_types):
            return architecture
    first = ", ".join(family.architectures[0] for family in FAMILIES)
    found = ", ".join(map(str, named)) if named else f"model_type {model_type!r}"
    near = _near(hf_config, str(named[0]) if named else f"{model_type}ForCausalLM")
    meant = f"near ones are {', '.join(near)}; " if near else ""
    raise ModelLoadError(f"config.json: architecture {found} is not supported; {meant}supported are {first}")


def _near(hf_config: Mapping[str, Any], name: str) -> list[str]:
    """Return the supported architectures that are nearest to one that is not: of its kind, and of these the ones that
    share what sets it apart (`_TRAITS`), before those that are spelt alike.
    """
    kind = "encoder-decoder" if hf_config.get("is_encoder_decoder") is True else _kind_of(name)
    if isinstance(hf_config.get("text_config"), dict):  # it reads more than text, and writes text as a decoder does
        kind = "decoder"
    names = [each.name for each in ARCHITECTURES if _kind_of(each.family.architectures[0]) == kind]
    told = " ".join([name.lower(), *(str(field) for field, value in hf_config.items() if value is not None)])
    alike = [each for trait, has in _TRAITS if trait.search(told) for each in has if each in names]
    return list(dict.fromkeys([*alike, *difflib.get_close_matches(name, names, n=3, cutoff=0.5)]))[:3]


def _kind_of(name: str) -> str:
    """Return the kind of network that the name of a class of `transformers` tells."""
    if name.endswith(("ForCausalLM", "LMHeadModel")):
        return "decoder"
    return "encoder-decoder" if name.endswith(("ForConditionalGeneration", "MTModel")) else "encoder"


def read_config(folder: Path) -> ModelConfig:
    """Read config.json and generation_config.json of a folder, or a configuration in a file of any name and the
    generation_config.json next to it, if there is one.

    Raises ModelLoadError, naming the field and the value, when the architecture or one of its options is not supported,
    or when the files make no sense.
    """
    written = folder if folder.is_file() else folder / "config.json"
    hf = Fields(read_object(written))
    architecture = find_architecture(hf.values)
    scheme = read_scheme(hf)
    if scheme is not None and any(row.arrange == "transpose" for row in architecture.family.weights.rows):
        raise ModelLoadError(
            f"config.json: quantization_config is set; a {architecture.name} is supported only without it"
        )
    generation = Fields.of_file(written.with_name("generation_config.json"))
    common = {
        "architecture": architecture.name,
        "family": architecture.family.name,
        "dtype": hf.dtype(),
        "stored_as": "gguf" if (written.parent / GGUF_NAME).is_file() else scheme and scheme.method,
        "bos_token_id": hf.optional_int("bos_token_id"),
        "eos_token_ids": tuple(dict.fromkeys(generation.ids("eos_token_id") + hf.ids("eos_token_id"))),
        "pad_token_id": hf.optional_int("pad_token_id"),
    }
    config = architecture.family.read(hf, common)
    for fields in (generation, hf) if config.kind != "encoder" else ():  # which writes no text that could end
        if any(not 0 <= token_id < config.vocab_size for token_id in fields.ids("eos_token_id")):
            raise fields.refuse("eos_token_id", f"ids of the vocabulary, 0 to {config.vocab_size - 1}, are expected")
    config = _with_own_head(config, architecture.family.own_head, hf, written.parent)
    if architecture.name.endswith(SUFFIX):
        # This head replaces the one for words. Embedding models that were trained from such a class may lack it.
        has_one = _holds(written.parent, architecture.family, "classifier.weight")
        head = architecture.family.read_classifier(hf) if has_one else None
        config = replace(config, classifier=head, has_head=False)
    # Models for embeddings may lack the head that fills in masked words, though config.json names a class that has it
    # (all-mpnet-base-v2).
    if config.head_transform is not None and not _holds(written.parent, architecture.family, "head_transform.weight"):
        config = replace(config, **NO_HEAD)
    return config if config.encoder is None else _with_start(config, hf, generation)


def _with_own_head(config: ModelConfig, own_head: str | None, hf: Fields, folder: Path) -> ModelConfig:
    """Set whether the head is a matrix of its own, if it may be one and config.json does not say: it is what the files
    have.

    Without files it is what config.json says, which is what `transformers` builds.
    """
    if own_head is None or config.tie_word_embeddings:
        return config
    names = tensor_names(folder)
    is_tied = hf.flag("tie_word_embeddings", True) if names is None else own_head not in names
    return replace(config, tie_word_embeddings=is_tied)


def _holds(folder: Path, family: Family, weight: str) -> bool:
    """Return whether the files of a folder hold a weight, by our name, or there are no files."""
    names = tensor_names(folder)
    source = next(row.sources[0] for row in family.weights.rows if row.name == weight)
    owner = source.removesuffix("weight")  # it may be stored quantised, in tensors of other names
    return names is None or any(name.startswith(owner) for name in names)


def _with_start(config: ModelConfig, hf: Fields, generation: Fields) -> ModelConfig:
    """Set the tokens that an encoder-decoder's answer begins with, and those that it never contains.

    generation_config.json wins; older checkpoints have them in config.json. The start is the first that is there of
    decoder_start_token_id, bos_token_id (as in transformers) and pad_token_id (T5's).
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
