"""Checkpoints with pipes, huge or nested files, or links to other folders: each is refused in one line, at once."""

import ctypes
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from lightwell.model.checkpoint.folder import ModelLoadError
from lightwell.model.checkpoint.lora_config import read_lora_config
from lightwell.model.checkpoint.registry import read_config
from lightwell.model.checkpoint.resolve import resolve
from lightwell.model.checkpoint.weight_files import WeightFiles
from lightwell.model.loading.lora_loader import load_adapter
from lightwell.model.network.sentence_transformers import embedding_defaults
from lightwell.model.tokenization import tokenizer as tokenization
from tests import tiny
from tests.model.watching import load
from tests.tiny.adapters import make_adapter

NESTED = "[" * 100_000, '{"a":' * 900 + "0" + "}" * 900, '{"a":' * 70 + "0" + "}" * 70
POOLED = [{"type": "sentence_transformers.models.Transformer"}, {"type": "x.Pooling", "path": "1_Pooling"}]


def read_all(folder: Path) -> None:
    """Read all small files of a folder."""
    config = read_config(folder)
    tokenization.Tokenizer.from_folder(folder)
    embedding_defaults(folder, config)
    WeightFiles(folder, config)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint with every file that is read as JSON or text, in a folder of its own."""
    folder = tiny.make_variant("llama-gqa", tmp_path / "inside" / "model")
    raw = Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    raw.save(str(folder / "tokenizer.json"))
    (folder / "model.safetensors").rename(folder / "one.safetensors")
    (folder / "1_Pooling").mkdir()
    files: dict[str, Any] = {
        "generation_config.json": {},
        "tokenizer_config.json": {},
        "special_tokens_map.json": {},
        "added_tokens.json": {},
        "modules.json": POOLED,
        "config_sentence_transformers.json": {},
        "sentence_bert_config.json": {},
        "1_Pooling/config.json": {"pooling_mode": "mean"},
        "model.safetensors.index.json": {"weight_map": {"a": "one.safetensors"}},
    }
    for name, value in files.items():
        (folder / name).write_text(json.dumps(value))
    read_all(folder)
    return folder


JSON_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "modules.json",
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
    "1_Pooling/config.json",
    "model.safetensors.index.json",
)


def refused(read: Callable[[], object]) -> str:
    with pytest.raises(ModelLoadError) as caught:
        read()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", JSON_FILES)
def test_json_that_is_nested_too_deeply_is_refused(name: str, folder: Path) -> None:
    for text in NESTED:
        (folder / name).write_text(text)
        said = refused(lambda: read_all(folder))
        assert f"{name}: is nested too deeply; at most 64 levels of lists and objects are accepted" in said


PROMPTS, MODULES = "config_sentence_transformers.json", "modules.json"
SURROGATE = f"{PROMPTS}: contains half of a surrogate pair, which is not a character"
ENDLESS = [POOLED[0], *[{"type": "x.Dense", "path": "2_Dense"}] * 100_000]


def pooled_in(path: str) -> str:
    return json.dumps([POOLED[0], {"type": "x.Pooling", "path": path}])


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (PROMPTS, r'{"prompts": {"q": "\ud800"}}', SURROGATE),  # no answer that repeats it could be written
        (PROMPTS, r'{"\uDC00": 1}', SURROGATE),
        (PROMPTS, json.dumps({"prompts": {"q": "a" * 10_001}}), "at most 10000 characters"),
        (MODULES, json.dumps(ENDLESS), "has 100001 objects; at most 100 are accepted"),
        (MODULES, pooled_in("a" * 300), "File name too long"),
        (MODULES, pooled_in("a\0b"), r"path is 'a\x00b'"),
        (MODULES, pooled_in("\ud800"), "half of a surrogate pair"),
    ],
    ids=range(7),
)
def test_values_that_no_system_has_and_endless_ones_are_refused(name: str, text: str, said: str, folder: Path) -> None:
    (folder / name).write_text(text)
    found = refused(lambda: read_all(folder))
    assert said in found
    assert len(found) < 1000
    (folder / PROMPTS).write_text(r'{"prompts": {"q": "\ud83d\ude00"}}')
    (folder / MODULES).write_text(json.dumps(POOLED))
    read_all(folder)


@pytest.mark.parametrize("name", [*JSON_FILES, "chat_template.jinja", "vocab.json", "vocab.txt"])
def test_what_is_no_file_or_huge_is_refused_and_not_waited_for(name: str, folder: Path) -> None:
    path = folder / name
    if name.startswith("vocab"):
        (folder / "tokenizer.json").unlink()
        (folder / "merges.txt").touch()
    no_file = "no weights" if "index" in name else "is not a regular file"
    makes: list[tuple[Callable[[], object], str]] = [
        (lambda: os.mkfifo(path), no_file),
        (lambda: path.symlink_to("/dev/zero"), no_file),
        (lambda: (path.touch(), os.truncate(path, 1 << 40)), "has 1099511627776 bytes; a regular file of at most"),
    ]
    for make, said in makes:
        path.unlink(missing_ok=True)
        make()
        assert said in refused(lambda: read_all(folder))


def test_a_gguf_file_that_is_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.gguf")
    assert "is not a regular file" in refused(lambda: resolve(str(tmp_path / "a.gguf")))


@pytest.mark.parametrize("path", ["../evil", "{outside}"])
def test_a_pooling_outside_the_folder_is_not_read(path: str, folder: Path, tmp_path: Path) -> None:
    outside = folder.parent / "evil"
    outside.mkdir()
    (outside / "config.json").write_text('{"pooling_mode": "secret"}')
    path = path.replace("{outside}", str(outside))
    (folder / MODULES).write_text(pooled_in(path))
    said = refused(lambda: read_all(folder))
    assert said == f"modules.json: path is {path!r}; the name of a folder inside the model's folder is expected"


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("ids", [-3, 2**70, tiny.VOCAB_SIZE, [1, -3]])
def test_ends_outside_the_vocabulary_are_refused(name: str, ids: Any, folder: Path) -> None:
    path = folder / name
    path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token_id": ids}))
    said = refused(lambda: read_config(folder))
    assert said == f"{name}: eos_token_id is {ids!r}; ids of the vocabulary, 0 to {tiny.VOCAB_SIZE - 1}, are expected"


def precompiled() -> bytes:
    """Return a table of SentencePiece's with a text of 1,000 characters."""
    return (4).to_bytes(4, "little") + bytes(4) + b"a" * 1000 + b"\0"


@pytest.mark.parametrize(
    ("part", "value", "said"),
    [
        ("normalizer", normalizers.Sequence([normalizers.Replace("a", "a" * 1000)] * 4), "up to 1000000000000 of"),
        ("normalizer", normalizers.Sequence([normalizers.Prepend("a" * 65)]), "up to 65 of one character"),
        ("normalizer", normalizers.Precompiled(precompiled()), "up to 1000 of one character; at most 64 are accepted"),
        ("pre_tokenizer", pre_tokenizers.Sequence([pre_tokenizers.ByteLevel()] * 9), "pre_tokenizer makes up to"),
    ],
)
def test_a_tokenizer_that_makes_texts_grow_is_refused(part: str, value: Any, said: str, folder: Path) -> None:
    raw = Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    setattr(raw, part, value)
    raw.add_special_tokens([AddedToken("<s>")])
    raw.save(str(folder / "tokenizer.json"))
    assert said in refused(lambda: read_all(folder))


def test_a_tokenizer_at_which_its_library_panics_is_refused(folder: Path) -> None:
    """Merges of a prefix that is longer than their second part: an index outside in Rust, which is no Exception."""
    path = folder / "tokenizer.json"
    raw = json.loads(path.read_text())
    raw["model"] |= {"vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]], "continuing_subword_prefix": "##"}
    path.write_text(json.dumps(raw))
    assert "PanicException" in refused(lambda: read_all(folder))


def exchange(one: Path, other: Path) -> None:
    """Exchange two entries of folders, so that both always exist."""
    libc, here, flag = ctypes.CDLL(None, use_errno=True), -100, 2
    assert libc.renameat2(here, os.fsencode(one), here, os.fsencode(other), flag) == 0


@pytest.fixture
def adapters(tmp_path: Path) -> tuple[Path, Path]:
    """An adapter inside a root, and a folder that links to one outside it."""
    for place, rank in (("root/a", 3), ("outside", 7)):
        (tmp_path / place).mkdir(parents=True)
        fields = {"peft_type": "LORA", "r": rank, "lora_alpha": 1}
        (tmp_path / place / "adapter_config.json").write_text(json.dumps(fields))
    (tmp_path / "root" / "link").symlink_to(tmp_path / "outside")
    return tmp_path / "root" / "a", tmp_path / "root" / "link"


def test_a_link_that_takes_the_place_of_an_adapter_is_never_followed(adapters: tuple[Path, Path]) -> None:
    folder, link = adapters
    root, ended, found = folder.parent.resolve(), threading.Event(), set[str]()
    assert read_lora_config(folder, 8, root).rank == 3
    assert read_lora_config(link, 8).rank == 7

    def keep_exchanging() -> None:
        while not ended.is_set():
            exchange(folder, link)

    thread = threading.Thread(target=keep_exchanging)
    thread.start()
    try:
        for _ in range(2000):
            try:
                found.add(f"rank {read_lora_config(folder, 8, root).rank}")
            except ModelLoadError as error:
                found.add("outside" if "is outside" in str(error) else "cannot be read")
    finally:
        ended.set()
        thread.join()
    assert "rank 7" not in found
    assert {"rank 3", "outside"} <= found


def test_a_file_of_an_adapter_may_link_inside_the_root_only(adapters: tuple[Path, Path]) -> None:
    folder, link = adapters
    kept = folder.with_name("kept.json")
    (folder / "adapter_config.json").rename(kept)
    (folder / "adapter_config.json").symlink_to("../kept.json")
    assert read_lora_config(folder, 8, folder.parent.resolve()).rank == 3
    kept.unlink()
    kept.symlink_to(link / "adapter_config.json")
    assert "is outside" in refused(lambda: read_lora_config(folder, 8, folder.parent.resolve()))


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # peft asks
def test_an_adapter_made_of_pipes_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    model = tiny.make_variant("llama-gqa", tmp_path / "model")
    make_adapter(model, tmp_path / "a", 0)
    network = load(model)
    root = tmp_path.resolve()
    assert load_adapter(tmp_path / "a", network, max_rank=8, root=root).changes
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        (tmp_path / "a" / name).unlink()
        os.mkfifo(tmp_path / "a" / name)
        for where in (None, root):
            said = refused(lambda where=where: load_adapter(tmp_path / "a", network, max_rank=8, root=where))
            assert f"{name}: is not a regular file" in said


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # peft asks
def test_a_wrong_adapter_is_told_in_our_words_and_its_names_on_one_line(tmp_path: Path) -> None:
    """A client that may load adapters reads these texts."""
    model = tiny.make_variant("llama-gqa", tmp_path / "model")
    folder = tmp_path / "a"
    make_adapter(model, folder, 0)
    network = load(model)

    def said() -> str:
        return refused(lambda: load_adapter(folder, network, max_rank=8))

    strange = "a\nb\x1b[31m" + "c" * 5000
    save_file({strange: torch.zeros(1)}, folder / "adapter_model.safetensors")
    assert "do not belong to a plain LoRA" in said()
    assert r"a\nb\x1b[31mccc" in said()
    assert len(said()) < 1000
    (folder / "adapter_model.safetensors").write_bytes(b"\x08" + bytes(7) + b'{"a": 1}')
    assert said().endswith("adapter_model.safetensors: not a complete safetensors file")
    config = folder / "adapter_config.json"
    fields = json.loads(config.read_text())
    config.write_text(json.dumps({**fields, strange: 1}))
    assert r"a\nb\x1b[31mccc" in said()
    assert len(said()) < 1000
    config.write_text('{"r": ')
    assert said().endswith("adapter_config.json: cannot be read as JSON (line 1, column 7)")
    config.write_text('{"r": ' + "9" * 5000)
    assert said().endswith("adapter_config.json: cannot be read as JSON (an integer has too many digits)")
