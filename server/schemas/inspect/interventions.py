"""Interventions as data: changes inside the network during a request. Requests never contain code."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from lightwell.server.schemas.base import (
    Index,
    ManyTokenIds,
    RequestModel,
    Selector,
    Text,
    Texts,
    TokenIds,
    encodable,
    wrong,
)

MAX_INTERVENTIONS = 64
MAX_LIST_NUMBERS = 16384
"""Most numbers of one value in lists: some milliseconds of the event loop. Base64 is faster, for more numbers."""
_MAX_SHAPE = 4
_TOO_MANY_NUMBERS = (
    f"a list of more than {MAX_LIST_NUMBERS} numbers; larger values are accepted as base64, "
    '{"data": ..., "shape": [...], "dtype": "float32"}'
)

PointName = Annotated[str, Field(min_length=1, max_length=128), AfterValidator(encodable)]


def _count_numbers(value: list[Any]) -> int:
    """Return the number of numbers in nested lists, without recursion: JSON may be as deep as Python's stack."""
    count, lists = 0, [value]
    while lists:
        items = lists.pop()
        inner = [item for item in items if isinstance(item, list)]
        count += len(items) - len(inner)
        lists += inner
    return count


class EncodedArray(RequestModel):
    """Numbers as base64, for values too large for lists."""

    data: str = Field(description="Base64 of the little-endian bytes, in C order.")
    shape: Annotated[list[Annotated[int, Field(ge=1, le=2**31 - 1)]], Field(max_length=_MAX_SHAPE)] = Field(
        description="Lengths of the axes."
    )
    dtype: Literal["float32", "float16"] = Field("float32", description="Number format.")


class InterventionSource(RequestModel):
    """Where numbers are taken from: a clean pass over another input, before the request itself runs."""

    input: Text | TokenIds | Texts | ManyTokenIds = Field(
        description="A text or token ids; for op mean also a list of them, all their positions averaged together."
    )
    decoder_input: Text | TokenIds | None = Field(
        None, description="For encoder-decoders: input of the decoder, as in the request."
    )
    point: PointName | None = Field(None, description="Null is the intervention's own point.")
    layer: Index | None = Field(None, description="Null is the intervention's own layer.")
    head: Selector | None = Field(None, description="Null is the intervention's own heads.")
    positions: Selector | None = Field(
        None,
        description="Null is the intervention's own positions, negative ones counted from the end of this input; for "
        "op mean null is all of them.",
    )
    add_special_tokens: bool = Field(True, description="Let the tokenizer add its special tokens to a text.")


class InterventionField(RequestModel):
    """One change to one point. Changes are applied in the order of the list, only to this request's own rows."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True, populate_by_name=True)

    point: PointName = Field(
        description='A point of GET /v1/capabilities with changeable true, short ("attn.hook_z", with layer) or full '
        '("blocks.3.hook_resid_post").'
    )
    layer: Selector | None = Field(
        None, description='A layer, a list, or "all"; required if the name contains none. Negative counts from the end.'
    )
    head: Selector = Field(
        "all", description="Heads of the point (key heads for hook_k and hook_v); only where it has heads."
    )
    positions: Selector = Field(
        "all",
        description="Positions of the input, negative from its end (query positions of scores and patterns; of the "
        "encoder's input for its points and for the keys and values of cross attention). "
        '"all" includes generated tokens.',
    )
    op: Literal["zero", "mean", "scale", "add", "patch", "temperature"] = Field(
        description="zero: 0; mean: the mean over positions, of `from` or of this input itself; scale: times the "
        "value; add: plus the value; patch: the value, or the numbers of `from`; temperature: attention scores "
        "divided by the value before the softmax, 0 puts all weight on the largest."
    )
    value: float | list[Any] | EncodedArray | None = Field(
        None,
        description=f"A number, nested lists of at most {MAX_LIST_NUMBERS} numbers, or {{data, shape, dtype}}; "
        "broadcasts to [positions, heads, ...] as the point's axes are (scores and patterns: [heads, queries, keys]). "
        "A score may be null, minus infinity, and is where the mask hides a key; a weight is 0 there.",
    )
    source: InterventionSource | None = Field(
        None, alias="from", description="Take the numbers from another input instead, by a clean pass over it."
    )
    minus: InterventionSource | None = Field(
        None,
        description="Only for op add with from: the numbers of this input are subtracted from the numbers of from. "
        "The result is the direction from one text to the other.",
    )
    times: float = Field(1.0, description="Only for op add with from: factor of the difference between from and minus.")

    @model_validator(mode="after")
    def _the_operation_has_what_it_needs(self) -> "InterventionField":
        if self.value is not None and self.source is not None:
            raise wrong("value", "value and from cannot be combined; set one of them")
        if isinstance(self.value, list) and _count_numbers(self.value) > MAX_LIST_NUMBERS:
            raise wrong("value", _TOO_MANY_NUMBERS)
        if (self.minus is not None or self.times != 1.0) and (self.op != "add" or self.source is None):
            field = "times" if self.minus is None else "minus"
            raise wrong(field, f"{field} is accepted with op 'add' and from only; leave it out")
        if self.op == "zero" and (self.value is not None or self.source is not None):
            raise wrong("op", "op 'zero' accepts no value and no from; leave them out")
        if self.op == "mean" and self.value is not None:
            raise wrong("value", "op 'mean' accepts no value; set from, or leave out both for the mean of this input")
        if self.op == "temperature" and (not isinstance(self.value, int | float) or self.value < 0):
            raise wrong("value", "op 'temperature' needs a number of 0 or more as value")
        if self.op in ("scale", "add", "patch") and self.value is None and self.source is None:
            raise wrong("value", f"op {self.op!r} needs value or from")
        return self


Interventions = Annotated[list[InterventionField], Field(max_length=MAX_INTERVENTIONS)]


class CanIntervene(RequestModel):
    """The field of every request that can carry interventions."""

    interventions: Interventions | None = Field(
        None,
        description="Changes inside the network while this request runs: ablate, scale, steer, patch, soften "
        f"attention. At most {MAX_INTERVENTIONS}, applied in order; no other request is touched.",
    )
