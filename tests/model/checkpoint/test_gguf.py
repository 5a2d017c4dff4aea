"""Networks in GGUF files against `transformers`: every architecture, every format, and files that are broken."""

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from gguf import GGMLQuantizationType as Type
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightwell.model.batch import Batch, Span
from lightwell.model.checkpoint.folder import ModelLoadError
from lightwell.model.checkpoint.gguf.blocks import GROUPED_TYPES, grouped_rows
from lightwell.model.checkpoint.gguf.header import read_header
from lightwell.model.checkpoint.gguf.kept_sizes import KEPT, bits_kept
from lightwell.model.checkpoint.registry import read_config
from lightwell.model.checkpoint.resolve import resolve
from lightwell.model.kernels.group_quantized import GroupedWeight
from lightwell.model.kv_cache import KVCache
from lightwell.model.loading.loader import load_model
from tests.gguf_files import ARCHITECTURES, make_network, write_gguf
from tests.support.examples import examples

pytestmark = pytest.mark.every_family  # each architecture has a table of its own

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))


def ours(path: Path, ids: list[int]) -> torch.Tensor:
    """Return the logits of our network, or an encoder's hidden states: float32."""
    folder = resolve(str(path))
    config = read_config(folder)
    model = load_model(folder, config, torch.float32, CPU)
    with torch.inference_mode():
        if config.kind == "encoder":
            return model.encode(Batch.unchunked([ids], 32, CPU, [config.num_layers]))[: len(ids)]
        cache = KVCache(model.cache_config, 8, 32, torch.float32, CPU, keys_in_rows=model.keys_in_rows)
        batch = Batch([Span(ids, 0, [1, 2], config.num_layers)], 32, CPU)
        return model.logits(model.forward(batch, cache)[: len(ids)])


def theirs(network: Any, ids: list[int]) -> torch.Tensor:
    """Return the same from a network of transformers, with its numbers widened to float64."""
    with torch.inference_mode():
        found = network.double()(torch.tensor([ids]))
    result: torch.Tensor = found[0][0]
    return result


def assert_alike(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Compare float32 numbers with float64 ones. With such matrices transformers' own float32 is up to 2e-5 of the
    largest away.
    """
    assert (found - expected).abs().max() <= 4e-5 * expected.abs().max()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_network_computes_what_transformers_computes_with_the_files_numbers(
    architecture: str, tmp_path: Path
) -> None:
    network, ids = make_network(architecture), torch.randint(96, (40,)).tolist()
    write_gguf(network, architecture, Type.Q8_0, tmp_path / "a.gguf")
    assert_alike(ours(tmp_path / "a.gguf", ids), theirs(network, ids))


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_every_format_that_can_be_made_is_read_as_transformers_reads_it(kind: str, tmp_path: Path) -> None:
    network, ids = make_network("llama", attention_bias=False), torch.randint(96, (40,)).tolist()
    write_gguf(network, "llama", Type[kind], tmp_path / "a.gguf")
    found = ours(tmp_path / "a.gguf", ids)
    assert_alike(found, theirs(network, ids))
    if kind == "Q4_1":  # it reads slowly, and one format shows that the writer of these files writes as it reads
        read = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="a.gguf", dtype=torch.float32)
        assert_alike(found, theirs(read, ids))


def test_vectors_may_be_quantised(tmp_path: Path) -> None:
    network, ids = make_network("llama", attention_bias=True), torch.randint(96, (40,)).tolist()
    write_gguf(network, "llama", Type.Q8_0, tmp_path / "a.gguf", vectors=Type.Q8_0)
    assert_alike(ours(tmp_path / "a.gguf", ids), theirs(network, ids))


@pytest.mark.parametrize("kind", GROUPED_TYPES, ids=lambda kind: kind.name)
def test_blocks_hold_what_the_gguf_package_says(kind: Type) -> None:
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    data = np.random.default_rng().integers(0, 256, (70, 512 // block_size, block_bytes), np.uint8)
    for place in {Type.Q6_K: (208,), Type.Q4_0: (0,), Type.Q8_0: (0,), Type.Q5_0: (0,)}.get(kind, (0, 2)):
        data[:, :, place : place + 2] = (
            np.random.default_rng().standard_normal((70, 512 // block_size, 1)).astype(np.float16).view(np.uint8)
        )
    data = data.reshape(70, -1)
    rows = grouped_rows(torch.from_numpy(data), kind, 512)
    expected = torch.from_numpy(gguf.quants.dequantize(data, kind))
    assert torch.equal(rows.to_dense(), expected)
    assert torch.equal(GroupedWeight([rows], torch.float32, 0).to_dense(), expected)
    bits, of_block = bits_kept(kind, on_card=False), KEPT[kind][1]
    packed = GroupedWeight([rows.select(torch.arange(64))], torch.float32, 0).packed
    assert packed.nbytes == 128 + 64 * (512 * bits // 8 + 512 // block_size * of_block)  # two lines come first


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "whole.gguf"
    write_gguf(make_network("qwen2"), "qwen2", Type.Q8_0, path)
    return path.read_bytes()


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_broken_file_is_refused_in_one_line_or_read(whole: bytes, tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(whole[: data.draw(st.one_of(st.just(len(whole)), st.integers(0, len(whole))))])
    header_bytes = min(len(content), 6000)
    for _ in range(data.draw(st.integers(0, 3))):
        if header_bytes > 8:
            at = data.draw(st.integers(0, header_bytes - 8))
            content[at : at + 8] = data.draw(st.one_of(st.binary(min_size=1, max_size=8), st.just(b"\xff" * 8)))
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    problem = None
    try:
        load_model(folder := resolve(str(path)), read_config(folder), torch.float32, CPU)
    except ModelLoadError as error:
        problem = str(error)
    assert problem is None or "\n" not in problem


def test_a_file_that_announces_more_than_it_holds_takes_no_memory(whole: bytes, tmp_path: Path) -> None:
    for at, said in ((8, "tensors"), (16, "fields")):
        content = bytearray(whole)
        content[at : at + 8] = (1 << 40).to_bytes(8, "little")
        (tmp_path / "bomb.gguf").write_bytes(content)
        with pytest.raises(ModelLoadError, match=said):
            read_header(tmp_path / "bomb.gguf")


def test_what_is_no_gguf_file_is_named(tmp_path: Path) -> None:
    for content, said in (
        (b"", "cannot be read"),
        (b"PK\3\4abcd", "begins with"),
        (b"GGUF\0\0\0\3" + bytes(16), "big"),
    ):
        (tmp_path / "a.gguf").write_bytes(content)
        with pytest.raises(ModelLoadError, match=said):
            resolve(str(tmp_path / "a.gguf"))


def test_a_folder_is_made_once_whoever_asks_for_it_at_the_same_time(tmp_path: Path) -> None:
    write_gguf(make_network("llama"), "llama", Type.Q8_0, tmp_path / "a.gguf")
    with ThreadPoolExecutor(4) as threads:
        found = set(threads.map(lambda _: resolve(str(tmp_path / "a.gguf")), range(8)))
    (folder,) = found
    assert read_config(folder).num_layers
    assert list(folder.parent.iterdir()) == [folder]  # nothing half-made is left


@pytest.mark.parametrize("mode", [0o777, 0o720], ids=oct)
def test_a_folder_is_not_made_where_others_may_write(
    mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user could leave a model there."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    write_gguf(make_network("llama"), "llama", Type.Q8_0, tmp_path / "a.gguf")
    first = resolve(str(tmp_path / "a.gguf"))
    first.parent.chmod(mode)
    second = resolve(str(tmp_path / "a.gguf"))
    assert second != first
    assert second.name == first.name
    second.parent.chmod(mode)
    with pytest.raises(ModelLoadError, match=r"other users can write to .*; set XDG_CACHE_HOME or TMPDIR"):
        resolve(str(tmp_path / "a.gguf"))


def test_caches_that_cannot_be_looked_up_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "/" + "x" * 5000)
    write_gguf(make_network("llama"), "llama", Type.Q8_0, tmp_path / "a.gguf")
    assert resolve(str(tmp_path / "a.gguf")).is_relative_to(tmp_path)
