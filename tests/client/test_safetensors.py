"""The safetensors reader against the format's own package, and against files with false contents."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import save

from lightwell_client import InvalidResponse
from lightwell_client._arrays import array_of
from lightwell_client._safetensors import RawTensor, read_safetensors

DTYPES = ["float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"]
ARRAYS = st.sampled_from(DTYPES).flatmap(lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, min_side=0)))


@given(
    tensors=st.dictionaries(st.text(max_size=5), ARRAYS, min_size=1, max_size=4),
    metadata=st.dictionaries(st.text(), st.text()),
)
def test_what_the_formats_own_package_writes_is_read_bit_for_bit(
    tensors: dict[str, np.ndarray[Any, Any]], metadata: dict[str, str]
) -> None:
    assume("__metadata__" not in tensors)
    file = read_safetensors(save(tensors, metadata=metadata))
    assert file.metadata == metadata
    assert file.tensors.keys() == tensors.keys()
    for name, expected in tensors.items():
        found = array_of(file.tensors[name])
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        assert found.tobytes() == expected.tobytes()


def test_bfloat16_becomes_float32_exactly() -> None:
    values = np.array([[1.0, -0.0], [3.140625, -np.inf]], dtype="<f4")
    upper = (values.view("<u4") >> 16).astype("<u2").tobytes()
    found = array_of(RawTensor("BF16", (2, 2), memoryview(upper)))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, values)


def file_of(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def tensor(dtype: Any = "U8", shape: Any = (2,), offsets: Any = (0, 2)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"1234567",
        file_of({}, length=2**63),
        file_of({}, length=3),
        file_of(b"{"),
        file_of(b"\xff"),
        file_of([1]),
        file_of(b"[" * 100_000),
        file_of({"__metadata__": {"a": 1}}),
        file_of({"__metadata__": "a"}),
        file_of({"a": 3}),
        file_of({"a": {"dtype": "U8"}}, b"12"),
        file_of({"a": tensor(dtype="F8")}, b"12"),
        file_of({"a": tensor(dtype=3)}, b"12"),
        file_of({"a": tensor(shape=(-1,))}, b"12"),
        file_of({"a": tensor(shape=(2.0,))}, b"12"),
        file_of({"a": tensor(shape=(True, 2))}, b"12"),
        file_of({"a": tensor(shape=(3,))}, b"12"),
        file_of({"a": tensor(dtype="F32", shape=(1,))}, b"12"),
        file_of({"a": tensor()}, b"1"),
        file_of({"a": tensor()}, b"123"),
        file_of({"a": tensor(offsets=(1, 3))}, b"123"),
        file_of({"a": tensor(offsets=(-2, 0))}, b"12"),
        file_of({"a": tensor(offsets=(2, 0))}, b"12"),
        file_of({"a": tensor(), "b": tensor(offsets=(1, 3))}, b"123"),
        file_of({"a": tensor(shape=(2**62, 2**62), offsets=(0, 2))}, b"12"),
    ],
)
def test_a_file_that_lies_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidResponse, match="safetensors: "):
        read_safetensors(content)


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(content: bytes) -> None:
    for candidate in (content, file_of(content)):
        try:
            read_safetensors(candidate)
        except InvalidResponse:
            continue
