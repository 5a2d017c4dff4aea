"""Defines the bodies and answers of the routes that explain how a pass came about: POST /v1/explain,
/v1/contributions, /v1/trajectory, /v1/heads and /v1/rollout.
"""

from typing import Any, Literal

from pydantic import Field, model_validator

from server.engine.request import Part
from server.schemas.base import AnswerModel, Index, InspectionAnswer, PromptInput, Selector, wrong
from server.schemas.chat_messages import Messages
from server.schemas.inspect.predictions import InspectionEntry, InspectionRequest, Target

OwnPart = Literal["decoder", "encoder"]
_PART = "Kind of attention: encoder, decoder or cross (from the decoder to the encoder); null is the model's own."
_STACK = "Of an encoder-decoder: which stack; null is the decoder."


class ExplainRequest(InspectionRequest):
    """Body of POST /v1/explain."""

    layer: Index = Field(description="The layer; negative counts from the end.")
    head: Index = Field(description="The query head; negative counts from the end.")
    query_position: Index = Field(-1, description="The position that looks; negative counts from the end.")
    part: Part | None = Field(None, description=_PART)


class Softmax(AnswerModel):
    """The numbers that turn scores into weights. Those of scores are null if a score overflowed."""

    largest_score: float | None = Field(description="Taken from every score first, so that no exponential overflows.")
    sink: float | None = Field(
        None, description="The head's sink: a score of no key, which takes its part of the weight; null without one."
    )
    sink_exponential: float | None = Field(0.0, description="That of the sink; 0 without one.")
    sum_of_exponentials: float | None = Field(description="Divisor of every exponential, including the sink's.")
    sum_of_weights: float | None = Field(description="1, except for rounding and the weight of the sink.")


class ExplainEntry(InspectionEntry):
    """One query of one head of one input.

    Arrays, in the order in which they are made: q_projected and k_projected (before norm and rotation), q and k
    (after), products [key, d_head] (their sum is the dot), dots, scaled, capped (only with a cap), position_bias (only
    with one), scores (null where masked, and where temperature 0 left the key nothing), exponentials, weights, v,
    weighted_v [key, d_head], z [d_head], output [d_model] (z W_O), and where there are such gate [d_head] (z times its
    sigmoid is what W_O is given) and output_bias [d_model] (b_O, of all heads together).
    """

    part: Part = Field(description="Which attention.")
    layer: int = Field(description="The layer.")
    head: int = Field(description="The query head.")
    kv_head: int = Field(description="The key and value head that it shares with its group.")
    query_position: int = Field(description="The position that looks.")
    key_positions: list[int] = Field(description="Positions of the keys, including masked ones.")
    scale: float = Field(description="The dots are multiplied by it: 1/sqrt(d_head) unless the model says otherwise.")
    softcap: float | None = Field(description="cap tanh(x / cap) of the scaled dots; null without one.")
    window: int | None = Field(description="Keys nearer than this are seen; null sees all.")
    causal: bool = Field(description="Whether keys after the query are masked.")
    softmax: Softmax = Field(description="How scores become weights.")
    differences: dict[str, float | None] = Field(
        description="Each step computed again in float64 from the network's input to it: largest distance from the "
        "network's scores, pattern, z and result. An intervention on one of these changes it; null if the "
        "distance is not finite (for scores after temperature 0, for any after an overflow)."
    )


class ExplainAnswer(InspectionAnswer):
    """Answer of POST /v1/explain as JSON."""

    data: list[ExplainEntry] = Field(description="One entry an input.")


class ContributionsRequest(InspectionRequest):
    """Body of POST /v1/contributions."""

    layers: Selector = Field("all", description='"all", a layer, or a list; negative counts from the end.')
    heads: Selector = Field("all", description='"all", a query head, or a list; negative counts from the end.')
    query_positions: Selector = Field(-1, description='Whom is added to: "all", a position, or a list.')
    key_positions: Selector = Field("all", description='By whom: "all", a position, or a list.')
    part: Part | None = Field(None, description=_PART)
    target: Target | None = Field(
        None, description="A text that is one token, or a token id: also its logit's parts (direct logit attribution)."
    )
    versus: Target | None = Field(None, description="Another token; its logit is subtracted from the target's.")
    vectors: bool = Field(
        False,
        description="Also the vectors themselves, pattern * v W_O, and all else that is added to the residual stream.",
    )
    sum_over: list[Literal["layer", "head", "key"]] = Field(
        [], max_length=3, description="Axes over which the vectors are summed, which makes the answer smaller."
    )

    @model_validator(mode="after")
    def _fields_agree(self) -> "ContributionsRequest":
        if self.sum_over and not self.vectors:
            raise wrong("sum_over", "sum_over is of the vectors: give vectors too")
        if self.versus is not None and self.target is None:
            raise wrong("versus", "versus is compared with a target: give target too")
        return self


class ContributionsEntry(InspectionEntry):
    """What each key added to each query in one input.

    Arrays: norms [layer, head, query, key], the length of what each key adds through each head (Kobayashi et al. 2020);
    with a target attributions [layer, head, query, key], what that adds to the target's logit, and components [query,
    component], the parts of the logit, which sum to `logits` (before a final soft cap).

    With vectors: vectors [layer, head, query, key, d_model] without the axes of sum_over, what each key adds through
    each head (after a norm of the attention's output, where there is one); additions [addition, query, d_model], all
    else that makes the residual stream; and states [state, query, d_model], that stream: state 0 enters the first
    block, state i leaves block i. All vectors and additions of a query sum to its last state.
    """

    part: Part = Field(description="Which attention.")
    layers: list[int] = Field(description="Layers of the first axis.")
    heads: list[int] = Field(description="Heads of the second axis.")
    query_positions: list[int] = Field(description="Positions of the third axis.")
    key_positions: list[int] = Field(description="Positions of the fourth axis.")
    target: dict[str, Any] | None = Field(None, description='{"token_id", "token"} of the target.')
    versus: dict[str, Any] | None = Field(None, description='{"token_id", "token"} of the other token.')
    component_names: list[str] | None = Field(
        None, description="Parts of the stream, by the points that hold them, and the bias of norm and head."
    )
    logits: list[float] | None = Field(None, description="Of each query: the sum of its components.")
    final_softcap: float | None = Field(None, description="The soft cap of the model's logits, applied after this sum.")
    difference: float | None = Field(
        None, description="Largest distance of that sum, capped if the model caps, from the model's own logit."
    )
    addition_names: list[str] | None = Field(
        None,
        description="Of the additions, in the order in which they are added: points; attn.b_O, and attn.rest if not "
        "all heads and keys were requested; ln1.change and similar names, the change by a norm of the stream "
        "(post-norm models); attn.change, hook_resid_mid.change and similar names, values set by an intervention "
        "that are no multiple of an addition; rounding, the loss when the network rounds its sums.",
    )
    stream_difference: float | None = Field(
        None,
        description="Largest length of the rounding part: distance of the sum of all other parts from the last state.",
    )


class ContributionsAnswer(InspectionAnswer):
    """Answer of POST /v1/contributions as JSON."""

    data: list[ContributionsEntry] = Field(description="One entry an input.")


class TrajectoryRequest(InspectionRequest):
    """Body of POST /v1/trajectory."""

    positions: Selector = Field(-1, description='Whose way through the layers: "all", a position, or a list.')
    compare_positions: Selector | None = Field(
        None, description="Also the cosine to these positions at every layer; null is none."
    )
    part: OwnPart | None = Field(None, description=_STACK)


class TrajectoryEntry(InspectionEntry):
    """How the vectors of some positions of one input change through the layers.

    Arrays [position, state], where state 0 is the embedding and i the residual stream after block i: norms, steps
    (length of the difference from the state before), cosine_to_start, cosine_to_previous; and cosine_to_others
    [position, state, other].
    """

    part: OwnPart = Field(description="Which stack.")
    positions: list[int] = Field(description="Positions of the first axis.")
    compare_positions: list[int] | None = Field(None, description="Positions of the last axis of cosine_to_others.")


class TrajectoryAnswer(InspectionAnswer):
    """Answer of POST /v1/trajectory as JSON."""

    data: list[TrajectoryEntry] = Field(description="One entry an input.")


class HeadsRequest(InspectionRequest):
    """Body of POST /v1/heads."""

    input: PromptInput | Messages | None = Field(  # type: ignore[assignment]
        None, description="As in /v1/attention. Null: random tokens written twice, which show induction heads."
    )
    layers: Selector = Field("all", description='"all", a layer, or a list; negative counts from the end.')
    heads: Selector = Field("all", description='"all", a head, or a list; negative counts from the end.')
    part: OwnPart | None = Field(None, description=_STACK)
    repeat_length: int | None = Field(
        None, ge=2, le=4096, description="Number of random tokens before their repetition; null is at most 50."
    )
    num_sequences: int = Field(4, ge=1, le=64, description="Random sequences that the scores are averaged over.")
    seed: int = Field(0, ge=0, le=2**63 - 1, description="Of the random tokens: the same seed, the same tokens.")

    @model_validator(mode="after")
    def _completions_follow_inputs(self) -> "HeadsRequest":
        if self.input is None:
            given = [name for name in ("completion", "decoder_input") if getattr(self, name) is not None]
            if given:
                raise wrong(given[0], f"{given[0]} belongs to an input: give input too")
        elif self.repeat_length is not None:
            raise wrong("repeat_length", "repeat_length is of random tokens: leave out input, or repeat_length")
        return self


class HeadsEntry(InspectionEntry):
    """Scores of heads, array scores [layer, head, measure]."""

    part: OwnPart = Field(description="Which stack.")
    layers: list[int] = Field(description="Layers of the first axis.")
    heads: list[int] = Field(description="Heads of the second axis.")
    measures: list[str] = Field(
        description="Means over the text: weight on the previous token, on the token itself and on the first token "
        "(at positions with others), entropy in nats, distance in tokens, and induction: weight on the successor "
        "of an earlier occurrence of the token (a text), or TransformerLens's diagonal (random tokens)."
    )
    strongest: dict[str, list[dict[str, Any]]] = Field(
        description='For each measure the heads with the largest score: [{"layer", "head", "score"}].'
    )
    repeat_length: int | None = Field(None, description="Of random tokens.")
    num_sequences: int | None = Field(None, description="Of random tokens.")


class HeadsAnswer(InspectionAnswer):
    """Answer of POST /v1/heads as JSON."""

    data: list[HeadsEntry] = Field(description="One entry an input; one for random tokens.")


class RolloutRequest(InspectionRequest):
    """Body of POST /v1/rollout."""

    method: Literal["rollout", "flow"] = Field(
        "rollout", description="rollout: the product of the layers; flow: maximum flow through their graph."
    )
    layers: Selector = Field(-1, description='Above which layers: "all", a layer, or a list.')
    heads: Selector = Field("all", description='Whose patterns are averaged in each layer: "all", a head, or a list.')
    query_positions: Selector | None = Field(
        None, description="Rows; null is all for rollout, and the last position for flow."
    )
    part: OwnPart | None = Field(None, description=_STACK)


class RolloutEntry(InspectionEntry):
    """Attention through the layers: array rollout [layer, query, key], whose rows sum to 1; or flow [layer, query,
    key], and normalized, the same with rows scaled to sum to 1.
    """

    part: OwnPart = Field(description="Which stack.")
    method: Literal["rollout", "flow"] = Field(description="Which of the two.")
    layers: list[int] = Field(description="Layers of the first axis.")
    heads: list[int] = Field(description="Heads in this mean pattern.")
    query_positions: list[int] = Field(description="Positions of the second axis.")


class RolloutAnswer(InspectionAnswer):
    """Answer of POST /v1/rollout as JSON."""

    data: list[RolloutEntry] = Field(description="One entry an input.")
