"""Defines the list of a network's weights, and questions and answers about the numbers of one."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from server.schemas.base import AnswerModel, Index, ListAnswer, Text
from server.schemas.predictions import DescribedArrayAnswer


class WeightEntry(AnswerModel):
    """A weight of the network, by TransformerLens's name."""

    name: str = Field(description='"embed.W_E", "blocks.0.attn.W_Q", "encoder.blocks.0.ln1.w".')
    axes: list[str] = Field(description="Names of its axes: matrices are [in, out], those of heads [head, ...].")
    shape: list[int] = Field(description="Their lengths.")
    stored: str | None = Field(
        description="The format in which the served model stores it: a dtype, or the kind of quantisation."
    )
    tied_to: str | None = Field(description="The weight whose storage it shares.")


class WeightListAnswer(ListAnswer):
    """Answer of GET /v1/models/{id}/weights."""

    stored_as: str | None = Field(description="The format in which the checkpoint holds quantised matrices.")
    data: list[WeightEntry] = Field(description="In the order of a forward pass.")
    not_listed: list[str] = Field(
        description="Weights that TransformerLens has no name for, as Lightwell calls them: they cannot be read here."
    )


class WeightsQuery(BaseModel):
    """Query of GET /v1/models/{id}/weights/{name}."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    layer: Index | None = Field(None, description="Of a short name; negative counts from the end.")
    head: Index | None = Field(
        None, description="One head of an attention weight (key head of W_K and W_V); null is all of them."
    )
    rows: Text = Field(
        "all",
        description='Of the first axis of a matrix, or of a vector: "all", indices with commas between, and ranges '
        '"0:64", the end left out; negative counts from the end. Rows of W_E are token ids.',
        max_length=1 << 14,
    )
    columns: Text = Field("all", description="Of the second axis of a matrix, in the same way.", max_length=1 << 14)
    encoding_format: Literal["float", "base64"] = Field("float", description="The array in JSON.")


class WeightsEntry(AnswerModel):
    """The numbers of a weight, or of a part of it, as the network uses them: dequantised, whole where processes share
    it, and without LoRA adapters. Gains of norms include what is added to them (Gemma's 1).

    Array: weights, float32.
    """

    object: Literal["weights"] = Field(description="Kind of entry.")
    index: int = Field(description="0.")
    name: str = Field(description="Full name.")
    head: int | None = Field(description="The head, when one was asked for: its axis is left out.")
    rows: list[int] | None = Field(description="The rows, in the order of the answer; null is all.")
    columns: list[int] | None = Field(description="The columns, likewise.")
    whole_shape: list[int] = Field(description="Of the whole weight.")
    tied_to: str | None = Field(description="The weight whose storage it shares.")
    arrays: dict[str, DescribedArrayAnswer] = Field(description="By name.")


class WeightsAnswer(ListAnswer):
    """Answer of GET /v1/models/{id}/weights/{name} as JSON."""

    data: list[WeightsEntry] = Field(description="One entry.")
