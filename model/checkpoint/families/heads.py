"""Reads how a config.json divides the width of a network into heads. It knows the field names that most families
share.
"""

from dataclasses import asdict, dataclass
from typing import Any

from model.checkpoint.families.fields import Fields


@dataclass(frozen=True, slots=True)
class HeadCounts:
    """The sizes of heads, under their names in ModelConfig, and the usual scale of scores."""

    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int

    def fields(self) -> dict[str, Any]:
        return {**asdict(self), "attention_scale": self.head_dim**-0.5}


def equal_heads(
    hf: Fields,
    width: str = "hidden_size",
    heads: str = "num_attention_heads",
    *,
    defaults: tuple[int | None, int | None] = (None, None),
) -> HeadCounts:
    """Read a network with as many key heads as query heads, which divide the width; `width` and `heads` name the
    fields.

    Raises ModelLoadError when they do not divide it.
    """
    hidden_size, num_heads = hf.size(width, defaults[0]), hf.size(heads, defaults[1])
    if hidden_size % num_heads:
        raise hf.refuse(width, f"a multiple of {heads} ({num_heads}) is expected")
    return HeadCounts(hidden_size, num_heads, num_heads, hidden_size // num_heads)


def grouped_heads(hf: Fields, *, num_kv_heads: int | None = None, head_dim: int | None = None) -> HeadCounts:
    """Read query heads that share key heads, and a head_dim that may differ from width / heads.

    The arguments are a family's defaults; where it has none, there are as many key heads as query heads (also where the
    file says null), and the head_dim is width / heads. Raises ModelLoadError for heads that cannot be shared evenly and
    for an odd head_dim, which cannot be rotated.
    """
    hidden_size, num_heads = hf.size("hidden_size"), hf.size("num_attention_heads")
    shared = hf.nullable_size("num_key_value_heads", num_kv_heads) or num_heads
    if num_heads % shared:
        raise hf.refuse("num_key_value_heads", f"a divisor of num_attention_heads ({num_heads}) is expected")
    head_dim = hf.size("head_dim", head_dim or hidden_size // num_heads)
    if head_dim % 2:
        raise hf.refuse("head_dim", f"rotary embedding needs an even head_dim, not {head_dim}")
    return HeadCounts(hidden_size, num_heads, shared, head_dim)
