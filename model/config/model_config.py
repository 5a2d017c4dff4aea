"""Configuration of a whole network."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from lightwell.model.config.classifier import ClassifierConfig
from lightwell.model.config.feedforward import AltUpConfig, ClampedGate, ExpertsConfig
from lightwell.model.config.positions import PositionBiasConfig, RopeConfig
from lightwell.model.config.recurrence import Recurrence

Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]
NormKind = Literal["rmsnorm", "layernorm"]
NormPlacement = Literal["pre", "post", "sandwich", "output"]
"""The norms of a sublayer f: x + f(norm(x)) | norm(x + f(x)) | x + norm2(f(norm1(x))) | x + norm(f(x))."""
QkNorm = Literal["head", "full"]
"""An RMSNorm of q and k before rotation: of each head (Qwen3, Gemma 3), or over all heads at once (OLMo-2)."""
Kind = Literal["decoder", "encoder", "encoder-decoder"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A transformer: embedding, stack of blocks and head. Sizes count elements, lengths count tokens.

    An encoder-decoder is a decoder; `encoder` is the configuration of its other stack.
    """

    architecture: str
    """The class of `transformers`, e.g. LlamaForCausalLM."""
    family: str
    """The name in model/checkpoint/registry.py of the reader of config.json and of the table of weights."""
    kind: Kind = "decoder"
    """The kind of the whole model. The `encoder` of an encoder-decoder is of kind "encoder"."""
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    max_model_len: int
    """The context length of the checkpoint, prompt and answer together. The server has its own limit."""
    norm: NormKind
    norm_eps: float
    norm_placement: NormPlacement = "pre"
    norm_bias: bool = True
    """Whether LayerNorms have a bias; an RMSNorm has none."""
    norm_weight_offset: float = 0.0
    """A number added to every norm's weight, in float32: 1 for Gemma 2 and 3."""
    norm_rounds_once: bool = False
    """Whether an RMSNorm without an offset is rounded only after the product, like one with an offset (Gemma 4)."""
    final_norm: bool = True
    embedding_norm: bool = False
    first_attention_norm: bool = True
    """Whether block 0 has a norm before its attention (not in ModernBERT, where a norm follows the embedding)."""
    parallel_blocks: bool = False
    """Whether a block is x + attention(norm1(x)) + mlp(norm2(x)), as in GPT-NeoX."""
    residual_scale: float = 1.0
    """The factor of each sublayer's output (Granite). It is not multiplied into the weights, because it also applies to
    adapters, and quantised matrices stay unchanged.
    """
    qk_norm: QkNorm | None = None
    v_norm: bool = False
    """Whether an RMSNorm without a weight is applied to the values of each head (Gemma 4)."""
    full_head_dim: int | None = None
    """The `head_dim` of layers without a window, if it differs (Gemma 4)."""
    full_num_kv_heads: int | None = None
    """The `num_kv_heads` of layers without a window, if it differs."""
    keys_are_values: bool = False
    """Whether the values of layers without a window are the keys before norm and rotation."""
    num_kv_shared_layers: int = 0
    """The number of last layers that use the keys and values of an earlier layer."""
    intermediate_sizes: tuple[int, ...] = ()
    """The `intermediate_size` of each layer, or () if all have the same."""
    sparsities: tuple[float, ...] = ()
    """The share of neurons that each layer's gate sets to 0, for a normal distribution (Gemma 3n), or ()."""
    altup: "AltUpConfig | None" = None
    stream_scales: bool = False
    """Whether the residual stream is multiplied by a learned number after each block (Gemma 4)."""
    per_layer_size: int | None = None
    """Width of the per-layer token embeddings, which gate a layer's last sublayer (Gemma 4), or None without them."""
    per_layer_vocab_size: int = 0
    """Rows of the table of per-layer token embeddings. Tokens beyond it have row 0."""
    activation: Activation
    gated_mlp: bool = False
    clamped_gate: ClampedGate | None = None
    """The clamped gate in place of activation(gate) * up, or None."""
    experts: ExpertsConfig | None = None
    recurrence: Recurrence | None = None
    """Layers with a state of fixed size for each sequence in place of attention; None: all have attention."""
    attention_bias: bool = False
    """Whether the q, k and v projections have biases."""
    attention_gate: bool = False
    """Whether each head's output is multiplied elementwise by the sigmoid of a gate (Qwen3.5)."""
    attention_out_bias: bool = False
    mlp_bias: bool = False
    rope: RopeConfig | None = None
    local_rope: RopeConfig | None = None
    """The rotary embedding of layers with a window (Gemma 3, ModernBERT), or None: all layers use `rope`."""
    unrotated_layers: tuple[int, ...] = ()
    """Layers without a rotary embedding in a network that has one (SmolLM3)."""
    learned_positions: bool = False
    sinusoidal_positions: bool = False
    """Whether the position table is fixed (Marian): sines in the first half of a row, cosines in the second."""
    position_offset: int = 0
    """The row of position 0 in the position table: 2 for OPT and BART, padding_idx + 1 for RoBERTa."""
    num_token_types: int = 0
    """Rows of the token type table. Row 1 is added to tokens of the second text of a pair, row 0 to all others."""
    embedding_size: int | None = None
    """Width of the token table if it differs from `hidden_size` (OPT-350m); two projections convert."""
    embedding_scale: float = 1.0
    """The factor of token embeddings, rounded to the model's dtype: sqrt(d) for Gemma."""
    position_bias: PositionBiasConfig | None = None
    alibi: bool = False
    """Whether a head's slope times the distance is subtracted from the scores (ALiBi, arXiv:2108.12409)."""
    tie_word_embeddings: bool
    head_bias: bool = False
    logit_scale: float = 1.0
    """The factor of the last hidden state before the head: d^-0.5 for a tied T5, 1 / logits_scaling for Granite."""
    has_head: bool = True
    """Whether the network has logits. An encoder has them if its checkpoint has a head for masked words."""
    head_transform: Activation | None = None
    """The activation of the dense layer and LayerNorm before the head of an encoder, or None without them."""
    head_transform_bias: bool = True
    classifier: ClassifierConfig | None = None
    """The head that scores or labels the whole input, in place of logits, or None."""
    attention_scale: float
    """The factor of q.k: 1 for T5."""
    attention_sinks: bool = False
    """Whether each head has a sink: a score without a key in the softmax. Rows of a pattern then sum to less than 1."""
    attn_logit_softcap: float | None = None
    final_logit_softcap: float | None = None
    sliding_windows: tuple[int | None, ...] = ()
    """The window of each layer, or () without windows. A query at p sees keys k with |p - k| < window; with None, all.
    """
    causal: bool = True
    cross_attention: bool = False
    """Whether each block also attends to the encoder's output, between its attention and its mlp."""
    encoder: "ModelConfig | None" = None
    """The other stack of an encoder-decoder. It shares the token table."""
    decoder_start_token_id: int | None = None
    """The first input token of an encoder-decoder's decoder."""
    forced_bos_token_id: int | None = None
    """The token that an encoder-decoder must generate first (<s> in BART's summarisers)."""
    suppressed_token_ids: tuple[int, ...] = ()
    """Tokens that an encoder-decoder never generates (the padding in Marian)."""
    pad_token_id: int | None = None
    dtype: str = "float32"
    """The dtype in config.json: float32, bfloat16, float16 or float64."""
    stored_as: str | None = None
    """The format of quantised matrices by its name in config.json, or gguf; None without them."""
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    """Tokens that end a text, from generation_config.json and config.json."""

    def labelled_ids(self, ids: Sequence[int]) -> Sequence[int]:
        """Return the ids that a classifier reads: for a decoder, without trailing padding."""
        length = len(ids)
        while self.kind == "decoder" and length > 1 and ids[length - 1] == self.pad_token_id:
            length -= 1
        return ids[:length]

    def window_of(self, layer: int) -> int | None:
        """Return the sliding window of a layer, or None without one."""
        return self.sliding_windows[layer] if self.sliding_windows else None

    def kv_layer(self, layer: int) -> int:
        """Return the layer that computes a layer's keys and values: itself, or the last of its kind with its own."""
        own = range(self.num_layers - self.num_kv_shared_layers)
        if layer in own:
            return layer
        return max(each for each in own if (self.window_of(each) is None) == (self.window_of(layer) is None))

    @property
    def layers_are_alike(self) -> bool:
        """Whether all layers have heads and mlps of the same sizes."""
        return self.full_head_dim is None and self.full_num_kv_heads is None and not self.intermediate_sizes

    def at(self, layer: int) -> "ModelConfig":
        """Return the configuration with the sizes of one layer's heads and mlp."""
        if self.layers_are_alike:
            return self
        is_full = self.window_of(layer) is None
        return replace(
            self,
            head_dim=(self.full_head_dim if is_full else None) or self.head_dim,
            num_kv_heads=(self.full_num_kv_heads if is_full else None) or self.num_kv_heads,
            intermediate_size=self.intermediate_sizes[layer] if self.intermediate_sizes else self.intermediate_size,
            full_head_dim=None,
            full_num_kv_heads=None,
            intermediate_sizes=(),
        )

    @property
    def largest_head_dim(self) -> int:
        """Return the largest `head_dim` of all layers."""
        return max(self.head_dim, self.full_head_dim or 0)

    @property
    def layers_with_kv(self) -> tuple["ModelConfig", ...]:
        """Return the configuration of each layer with keys and values of its own."""
        own = range(self.num_layers - self.num_kv_shared_layers)
        return tuple(self.at(layer) for layer in own if self.has_attention(layer))

    def has_experts(self, layer: int) -> bool:
        return self.experts is not None and layer not in self.experts.dense_layers

    def has_mlp(self, layer: int) -> bool:
        """Return whether a layer has an mlp, with or without experts."""
        return self.experts is None or self.experts.beside_mlp or layer in self.experts.dense_layers

    @property
    def dense_layers(self) -> tuple[int, ...]:
        """Return the layers with an mlp."""
        return tuple(filter(self.has_mlp, range(self.num_layers)))

    def has_attention(self, layer: int) -> bool:
        """Return whether a layer has attention, and keys and values in the cache."""
        return self.recurrence is None or layer not in self.recurrence.layers

    @property
    def attention_layers(self) -> tuple[int, ...]:
        return tuple(layer for layer in range(self.num_layers) if self.has_attention(layer))

    def mixer_name(self, layer: int) -> str:
        """Return the name of a layer's token mixer."""
        return "attention" if self.has_attention(layer) or self.recurrence is None else self.recurrence.kind

    @property
    def reuses_prefixes(self) -> bool:
        """Return whether a sequence may reuse the cached prefix of another, which is impossible with states."""
        return self.recurrence is None

    def state_bytes(self, item_size: int) -> int:
        """Return the bytes of one sequence's states in all layers. Each layer has two: a step reads one and writes the
        other, so that it can be repeated. item_size: bytes of a number of the model's dtype.
        """
        if self.recurrence is None:
            return 0
        sizes = self.recurrence.state_sizes(self.hidden_size)
        return 2 * len(self.recurrence.layers) * sizes.num_bytes(item_size)

    def rope_of(self, layer: int) -> RopeConfig | None:
        """Return the rotary embedding of a layer, or None without one."""
        if layer in self.unrotated_layers or not self.has_attention(layer):
            return None
        return self.rope if self.local_rope is None or self.window_of(layer) is None else self.local_rope

    @property
    def num_matrix_parameters(self) -> int:
        """Return the number of weights in the matrix products of one token of each stack: the head and the chosen
        experts included, norms and biases excluded.
        """
        blocks = 0
        for layer in range(self.num_layers):
            own, has_kv = self.at(layer), self.kv_layer(layer) == layer
            neurons = own.intermediate_size if self.has_mlp(layer) else 0
            if self.experts is not None and self.has_experts(layer):
                neurons += self.experts.num_chosen * self.experts.intermediate_size
                neurons += self.experts.shared_intermediate_size or 0
                blocks += self.hidden_size * (self.experts.num_experts + self.experts.shared_gate)  # routers
            if self.recurrence is not None and layer in self.recurrence.layers:
                blocks += self.recurrence.num_matrix_parameters(self.hidden_size)
            else:
                heads = own.num_heads * (3 if self.attention_gate else 2) + 2 * own.num_kv_heads * has_kv
                blocks += self.hidden_size * heads * own.head_dim * (2 if self.cross_attention else 1)
            blocks += (3 if self.gated_mlp else 2) * self.hidden_size * neurons
        blocks += 3 * self.num_layers * self.hidden_size * (self.per_layer_size or 0)
        if self.altup is not None:
            blocks += 2 * (self.altup.num_streams - 1) * self.hidden_size**2
            blocks += self.num_layers * self.hidden_size * (2 * self.altup.laurel_rank + self.altup.num_streams)
        head = self.vocab_size * self.hidden_size if self.has_head else 0
        if self.head_transform is not None:
            head += self.hidden_size**2
        return blocks + head + (self.encoder.num_matrix_parameters if self.encoder else 0)
