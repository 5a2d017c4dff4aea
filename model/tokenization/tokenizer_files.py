"""Reader of a checkpoint folder's tokenizer files: a `tokenizers.Tokenizer` and its settings.

It follows `transformers.AutoTokenizer.from_pretrained`: chooses the class, rebuilds the parts that the class changes,
adds the tokens that only `tokenizer_config.json`, `special_tokens_map.json` or `added_tokens.json` have, and sets the
beginning and end tokens. Independent of encoding, decoding and chats.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, processors

from lightwell.model.checkpoint.files import open_file, read_json, read_text
from lightwell.model.checkpoint.folder import ModelLoadError, is_failure, one_line
from lightwell.model.tokenization.text_growth import MOST_GROWTH, text_growth
from lightwell.model.tokenization.tokenizer_classes import Json, TokenizerClass, choose_class

NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""The special tokens that every tokenizer may name, in the order of the ids of missing ones."""

_CONVERT = (
    "python -c \"from transformers import AutoTokenizer; f = '{folder}'; "
    'AutoTokenizer.from_pretrained(f).save_pretrained(f)"'
)


class TokenizerError(ModelLoadError):
    """The folder's tokenizer cannot be loaded; the message is one line with the file and the reason."""


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """A loaded tokenizer with the settings in its files."""

    raw: tokenizers.Tokenizer
    special_tokens: Mapping[str, str]
    """Special tokens (bos_token, eos_token, ...) by name, without unset ones."""
    cleans_up: bool
    """Whether decoded text loses spaces before punctuation (`clean_up_tokenization_spaces`)."""
    chat_template: str | None
    generation_eos_ids: tuple[int, ...]
    """End-of-text ids that generation_config.json names."""
    gives_types: bool
    """Whether the network takes types: for each token of a pair, the number of its text."""


def read_tokenizer_files(folder: Path) -> TokenizerFiles:
    """Load the tokenizer of a checkpoint folder.

    Raises `TokenizerError` if a file is missing or broken.
    """
    try:
        return _read(folder)
    except TokenizerError:
        raise
    except ModelLoadError as error:
        raise TokenizerError(str(error)) from error
    except BaseException as error:
        # The files are JSON of any shape; this message covers the errors without a check below.
        if not is_failure(error):
            raise
        kind = "too large for the memory that is left" if isinstance(error, MemoryError) else "malformed"
        reason = f"{type(error).__name__}: {one_line(error)}"
        raise TokenizerError(f"the tokenizer files of {folder} are {kind}: {reason}") from error


def _read(folder: Path) -> TokenizerFiles:
    config = _read_object(folder / "tokenizer_config.json")
    model_config = _read_object(folder / "config.json")
    file = _vocabulary(folder)
    from_tokenizer_json = (folder / "tokenizer.json").exists()
    declared = _text(folder / "tokenizer_config.json", config, "tokenizer_class")
    declared = declared or _text(folder / "config.json", model_config, "tokenizer_class")
    model_type = _text(folder / "config.json", model_config, "model_type")
    usual = "BertTokenizer" if file["model"].get("type") == "WordPiece" else "GPT2Tokenizer"
    if not from_tokenizer_json:
        declared = declared or usual
    parts = [file.get(key) for key in ("normalizer", "pre_tokenizer", "post_processor", "decoder")]
    cls = choose_class(model_type, declared, byte_level='"ByteLevel"' in json.dumps(parts))
    if cls.rebuild is None and not from_tokenizer_json:
        cls = choose_class(None, usual, byte_level=True)

    options = {**cls.special_tokens, **config}
    if from_tokenizer_json:
        # The file's own post-processor is used; published configs are often wrong about it.
        options.pop("add_bos_token", None)
        options.pop("add_eos_token", None)
    added = _added_tokens(folder, file, config, options, cls)
    options = {key: _as_token(value) for key, value in options.items()}
    raw = _build(folder, cls.rebuild(file, options) if cls.rebuild else None)
    special = _special_tokens(options)
    _add_missing(raw, added, special, _extra_tokens(options, cls))
    if cls.marks_special:
        raw.add_tokens([AddedToken(str(token), special=True) for token in special.values()])
    _set_post_processor(raw, cls, options, special)
    if raw.post_processor is not None and (lacking := _lacking(raw, json.loads(raw.post_processor.__getstate__()))):
        file_name = folder / "tokenizer.json"
        raise TokenizerError(
            f"{file_name}: post_processor names {lacking!r:.99}, a token that is not in the vocabulary"
        )
    raw.no_truncation()
    raw.no_padding()
    raw.encode_special_tokens = bool(options.get("split_special_tokens", False))
    return TokenizerFiles(
        raw=raw,
        special_tokens={name: str(token) for name, token in special.items()},
        cleans_up=_cleans_up(raw, options),
        chat_template=_chat_template(folder, config),
        generation_eos_ids=_generation_eos(folder),
        gives_types="token_type_ids" in (config.get("model_input_names") or ["token_type_ids"] * cls.gives_types),
    )


def _vocabulary(folder: Path) -> Json:
    """Return the folder's `tokenizer.json`, or an equivalent from `vocab.json` and `merges.txt` (GPT-2's kind) or from
    `vocab.txt` (BERT's kind).
    """
    if not folder.is_dir():
        raise TokenizerError(f"tokenizer folder {folder} does not exist")
    path = folder / "tokenizer.json"
    if path.exists():
        file = _read_object(path)
        if not isinstance(file.get("model"), dict) or "vocab" not in file["model"]:
            raise TokenizerError(f"{path} is not a tokenizer file: it has no model with a vocabulary")
        return file
    vocab, merges = folder / "vocab.json", folder / "merges.txt"
    if vocab.exists() and merges.exists():
        tokens, pairs = _read_files(tokenizers.models.BPE.read_file, vocab, merges)
        return {"model": {"type": "BPE", "vocab": tokens, "merges": [list(pair) for pair in pairs]}}
    words = folder / "vocab.txt"
    if words.exists():
        return {"model": {"type": "WordPiece", "vocab": _read_files(tokenizers.models.WordPiece.read_file, words)}}
    if (folder / "source.spm").exists():
        raise TokenizerError(
            f"{folder} has source.spm and target.spm, two tokenizers for input and output, which are not supported; a "
            "tokenizer.json is needed, made with the tokenizers library from the pieces and their ids"
        )
    for path in [*sorted(folder.glob("*.model")), *folder.glob("tekken.json")]:
        convert = _CONVERT.format(folder=folder)
        raise TokenizerError(f"{folder} has only {path.name}; it must be converted once to tokenizer.json: {convert}")
    raise TokenizerError(f"{folder} has no tokenizer: it needs tokenizer.json, vocab.json and merges.txt, or vocab.txt")


def _read_files(read: Callable[..., Any], *paths: Path) -> Any:
    try:
        for path in paths:
            open_file(path).close()
        return read(*map(str, paths))
    except Exception as error:
        raise TokenizerError(f"cannot read {' and '.join(map(str, paths))}: {one_line(error)}") from error


def _build(folder: Path, rebuilt: Json | None) -> tokenizers.Tokenizer:
    """Return the fast tokenizer of a rebuilt file, or of the folder's own."""
    try:
        if rebuilt is None:
            raw = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        else:
            raw = tokenizers.Tokenizer.from_str(json.dumps(rebuilt))
    except Exception as error:
        raise TokenizerError(f"cannot build the tokenizer of {folder}: {one_line(error)}") from error
    for part, growth in text_growth(raw).items():
        if growth > MOST_GROWTH:
            made = f"{part} makes up to {growth:.0f} of one character"
            raise TokenizerError(f"{folder / 'tokenizer.json'}: {made}; at most {MOST_GROWTH} are accepted")
    return raw


def _as_token(value: Any) -> Any:
    """Return an AddedToken for a config's object of that type, in lists too; any other value unchanged."""
    if isinstance(value, dict) and value.get("__type") == "AddedToken":
        return _added_token(value)
    return [_as_token(item) for item in value] if isinstance(value, list) else value


def _added_token(fields: Json, **forced: bool) -> AddedToken:
    known = {key: fields[key] for key in ("single_word", "lstrip", "rstrip", "normalized", "special") if key in fields}
    content = fields.get("content")
    if not isinstance(content, str):
        raise TokenizerError(f"an added token must have a text as its content, not {content!r}")
    return AddedToken(content, **known | forced)


def _added_tokens(folder: Path, file: Json, config: Json, options: Json, cls: TokenizerClass) -> dict[int, AddedToken]:
    """Return added tokens by id, from the newest format in the folder; older formats also fill `options`."""
    if "added_tokens_decoder" in config:
        try:
            return {int(token_id): _added_token(row) for token_id, row in config["added_tokens_decoder"].items()}
        except (AttributeError, TypeError, ValueError) as error:
            raise TokenizerError(f"{folder / 'tokenizer_config.json'}: added_tokens_decoder: {error}") from error
    for key, value in _read_object(folder / "special_tokens_map.json").items():
        row = _added_token(value, special=True) if isinstance(value, dict) and "content" in value else value
        options[key] = (
            [_added_token(t, special=True) if isinstance(t, dict) else t for t in row] if isinstance(row, list) else row
        )
    added: dict[int, AddedToken] = {}
    special = {str(options[name]) for name in NAMED_TOKENS if options.get(name)}
    special |= {str(token) for token in _extra_tokens(options, cls)}
    for content, token_id in _read_object(folder / "added_tokens.json").items():
        is_special = content in special
        added[int(token_id)] = AddedToken(content, normalized=not is_special, special=is_special)
    for row in file.get("added_tokens") or []:
        added[int(row["id"])] = _added_token(row)
    return added


def _special_tokens(options: Mapping[str, Any]) -> dict[str, str | AddedToken]:
    """Return the special tokens that are set, by name: the seven usual ones, then any other option called *_token."""
    special = {name: options[name] for name in NAMED_TOKENS if isinstance(options.get(name), str | AddedToken)}
    extra = options.get("extra_special_tokens")
    named = {key: value for key, value in options.items() if key.endswith("_token") and key not in NAMED_TOKENS}
    named |= extra if isinstance(extra, dict) else {}
    return special | {key: _as_token(value) for key, value in named.items() if isinstance(value, str | AddedToken)}


def _extra_tokens(options: Mapping[str, Any], cls: TokenizerClass) -> list[str | AddedToken]:
    """Return the special tokens without a name, from one of their two keys, or the class's own."""
    extra = options.get("extra_special_tokens") or options.get("additional_special_tokens") or []
    if cls.extra_tokens is not None:
        extra = cls.extra_tokens(options)
    return [token for token in extra if isinstance(token, str | AddedToken)] if isinstance(extra, list) else []


def _add_missing(
    raw: tokenizers.Tokenizer,
    added: Mapping[int, AddedToken],
    special: Mapping[str, str | AddedToken],
    extra: list[str | AddedToken],
) -> None:
    """Add the tokens that the fast tokenizer lacks, in the order of AutoTokenizer's ids."""
    held = raw.get_added_tokens_decoder().values()
    held_exactly = {repr(token) for token in held}
    pending: list[AddedToken] = [token for _, token in sorted(added.items()) if repr(token) not in held_exactly]
    known = {token.content for token in held} | {token.content for token in pending}
    names = {str(token) for token in special.values()}
    for token in pending:
        token.special = token.special or token.content in names
    for wanted in (*special.values(), *extra):
        if str(wanted) not in known:
            known.add(str(wanted))
            pending.append(wanted if isinstance(wanted, AddedToken) else AddedToken(wanted, special=True))
    if pending:
        raw.add_tokens(pending)


def _set_post_processor(
    raw: tokenizers.Tokenizer, cls: TokenizerClass, options: Json, special: Mapping[str, str | AddedToken]
) -> None:
    if cls.post_processor is not None:
        ids = {name: (str(token), _token_id(raw, str(token))) for name, token in special.items()}
        file = json.loads(raw.to_str())
        try:
            file["post_processor"] = cls.post_processor(ids, options)
        except KeyError as error:
            raise TokenizerError(f"tokenizer_config.json: {cls.name} needs a {error.args[0]}") from error
        raw.post_processor = tokenizers.Tokenizer.from_str(json.dumps(file)).post_processor
        return
    if not (cls.rebuilds_post_processor or "add_bos_token" in options or "add_eos_token" in options):
        return
    begin, end = (
        [str(special[f"{name}_token"])] if options.get(f"add_{name}_token") and f"{name}_token" in special else []
        for name in ("bos", "eos")
    )
    first = [f"{piece}:0" for piece in (*begin, "$A", *end)]
    raw.post_processor = processors.TemplateProcessing(
        single=first,
        pair=[*first, *(f"{piece}:1" for piece in (*begin, "$B", *end))],
        special_tokens=[(token, _token_id(raw, token)) for token in {*begin, *end}],
    )


def _lacking(raw: tokenizers.Tokenizer, step: Json) -> str | None:
    """Return a token of a post-processor that has no id in it or in the vocabulary, or None."""
    if step["type"] == "Sequence":
        return next(filter(None, (_lacking(raw, inner) for inner in step["processors"])), None)
    ids = {name: row["ids"] for name, row in step.get("special_tokens", {}).items()}
    ends = {step[name][0]: step[name][1:] for name in ("cls", "sep") if name in step}
    pieces = (piece.get("SpecialToken") for piece in (*step.get("single", ()), *step.get("pair", ())))
    added, ids = [*ends, *(piece["id"] for piece in pieces if piece)], ids | ends
    return next((name for name in added if name not in ids or None in map(raw.id_to_token, ids[name])), None)


def _token_id(raw: tokenizers.Tokenizer, token: str) -> int:
    token_id: int | None = raw.token_to_id(token)
    if token_id is None:
        raise TokenizerError(f"the special token {token!r} cannot be added to the vocabulary")
    return token_id


def _cleans_up(raw: tokenizers.Tokenizer, options: Mapping[str, Any]) -> bool:
    # The clean-up was designed for WordPiece. With BPE it removes real spaces, so it needs a second flag.
    wanted = bool(options.get("clean_up_tokenization_spaces", False))
    forced = bool(options.get("clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output", False))
    return wanted and (forced or not isinstance(raw.model, tokenizers.models.BPE))


def _chat_template(folder: Path, config: Json) -> str | None:
    """Return the default chat template, or None, from its own file or else from the config. Of several, it is the one
    named default.
    """
    named: dict[str, str] = {}
    for path in [folder / "chat_template.jinja", *sorted((folder / "additional_chat_templates").glob("*.jinja"))]:
        if path.exists():
            name = "default" if path.name == "chat_template.jinja" else path.stem
            named[name] = read_text(path)
    if named:
        return named.get("default")
    template = config.get("chat_template")
    if isinstance(template, list):
        rows = [row for row in template if isinstance(row, dict)]
        template = {row.get("name"): row.get("template") for row in rows}.get("default")
    if template is not None and not isinstance(template, str):
        path = folder / "tokenizer_config.json"
        raise TokenizerError(f"{path}: chat_template must be a text or a list of named texts, not {template!r}")
    return template


def _generation_eos(folder: Path) -> tuple[int, ...]:
    path = folder / "generation_config.json"
    eos = _read_object(path).get("eos_token_id")
    ids = eos if isinstance(eos, list) else [] if eos is None else [eos]
    for token_id in ids:
        if not isinstance(token_id, int) or isinstance(token_id, bool):
            raise TokenizerError(f"{path}: eos_token_id must be an integer or a list of them, not {eos!r}")
    return tuple(ids)


def _read_object(path: Path) -> Json:
    """Return a JSON file's object, or {} if there is no such file."""
    value = read_json(path) if path.exists() else {}
    if not isinstance(value, dict):
        raise TokenizerError(f"{path} must contain a JSON object, not {type(value).__name__}")
    return value


def _text(path: Path, fields: Json, name: str) -> str | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise TokenizerError(f"{path}: {name} must be a text, not {value!r}")
    return value
