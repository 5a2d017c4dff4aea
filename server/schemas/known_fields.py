"""The fields of other servers that Lightwell lacks: ignored ones, which cannot change the answer, and refused ones,
which would.

The fields of OpenAI's, vLLM's, SGLang's and llama.cpp's requests are known by name, so that their clients work
unchanged, and so that an unknown name is reported as the typing error that it is. `docs/reference.md` shows these
tables.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lightwell.server.engine.messages.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class Refused:
    """A field that would change the answer, except with values that have no effect."""

    why: str
    """The reason that the client gets."""
    neutral: tuple[Any, ...] = ()
    """Values without an effect, in addition to null and empty values; false has none either, unless true is one of
    these.
    """

    def asks_for_nothing(self, value: Any) -> bool:
        """Return whether the answer is the same without it."""
        if isinstance(value, bool):
            return value is any(one is True for one in self.neutral)
        return value is None or value in ("", [], {}) or value in self.neutral


Ignored = Mapping[str, str]
"""A field's name mapped to the reason why it changes nothing."""
RefusedFields = Mapping[str, Refused]

_ACCOUNT = "a label for the client's own use"

IGNORED_EVERYWHERE: Ignored = {
    **dict.fromkeys(("user", "metadata", "safety_identifier", "custom_labels"), _ACCOUNT),
    "store": "nothing is stored",
    "service_tier": "the server has only one tier",
    "prompt_cache_key": "the prefix cache works without a key",
    **dict.fromkeys(("prompt_cache_retention", "prompt_cache_options"), "the server manages the prefix cache"),
    "session_id": "the server stores no sessions",
    **dict.fromkeys(("request_id", "rid"), "the header X-Request-Id sets the id of a request"),
    **dict.fromkeys(
        ("kv_transfer_params", "bootstrap_host", "bootstrap_port", "bootstrap_room"),
        "the KV cache stays on this server",
    ),
    "ec_transfer_params": "the encoder's output stays on this server",
    "data_parallel_rank": "the server chooses the worker",
    "routed_dp_rank": "the server chooses the worker",
    "disagg_prefill_dp_rank": "the server chooses the worker",
    **dict.fromkeys(("mm_processor_kwargs", "media_io_kwargs"), "the server accepts only text"),
    "stream_interval": "each token is sent at once",
}

_NO_BEAMS = "beam search is not available"
_NO_SUCH_SAMPLER = "this sampler is not supported; use temperature, top_k, top_p, min_p and the penalties"

REFUSED_EVERYWHERE: RefusedFields = {
    **dict.fromkeys(("lora_path", "lora"), Refused("to use a LoRA adapter, send its name as model")),
    "extra_key": Refused("use cache_salt instead"),
    "truncation_side": Refused("truncate_prompt_tokens always removes the beginning of a prompt", ("left",)),
    "image_data": Refused("the server does not accept images"),
    **dict.fromkeys(("prompt_embeds", "input_embeds"), Refused("a prompt must be text or token ids")),
}

_OPTIONS_OF_SAMPLERS = (
    "dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers", "xtc_threshold",
    "dynatemp_exponent", "mirostat_tau", "mirostat_eta", "adaptive_decay", "repeat_last_n",
)  # fmt: skip

IGNORED_BY_GENERATION: Ignored = {
    **IGNORED_EVERYWHERE,
    **dict.fromkeys(_OPTIONS_OF_SAMPLERS, "an option of a sampler that is not supported"),
    **dict.fromkeys(("routed_experts_prompt_start", "routed_experts_start_len"), "this model has no experts"),
    "return_token_offsets": "vLLM uses it only on its routes that render a prompt",
    **dict.fromkeys(
        ("return_mm_kwargs", "images_config", "max_dynamic_patch", "min_dynamic_patch", "use_audio_in_video"),
        "the server accepts only text",
    ),
    **dict.fromkeys(("cache_prompt", "n_cache_reuse"), "the server manages the prefix cache"),
    **dict.fromkeys(("id_slot", "slot_id"), "the server chooses the slot"),
    "penalize_nl": "a newline is penalised like any other token",
    "timings_per_token": "GET /metrics returns the times of tokens",
    "return_progress": "GET /metrics returns the times of prompts",
    "return_cached_tokens_details": "usage contains the number of cached tokens",
    "backend_sampling": "the server chooses the device of the sampler",
    "spaces_between_special_tokens": "the tokenizer determines the spaces",
    "sse_ping_interval": "the server sends no pings",
    "guided_decoding_backend": "there is only one backend",
    "chat_format": "the model determines the chat template",
}

_OF_CHATS = (
    "parallel_tool_calls", "separate_reasoning", "stream_reasoning", "include_reasoning", "reasoning_format",
    "parse_tool_calls",
)  # fmt: skip

IGNORED_BY_COMPLETIONS: Ignored = {
    **IGNORED_BY_GENERATION,
    **dict.fromkeys(_OF_CHATS, "a completion is plain text, without tool calls or reasoning"),
    "prediction": "it changes only the speed, and only in chat completions",
}

IGNORED_BY_CHAT: Ignored = {**IGNORED_BY_GENERATION, "stream_reasoning": "reasoning is always streamed"}

REFUSED_BY_GENERATION: RefusedFields = {
    **REFUSED_EVERYWHERE,
    **dict.fromkeys(("use_beam_search", "early_stopping"), Refused(_NO_BEAMS)),
    "length_penalty": Refused(_NO_BEAMS, (1,)),
    "grammar_lazy": Refused("a grammar applies from the first token of the answer"),
    "grammar_triggers": Refused("a grammar applies from the first token of the answer"),
    "stop_regex": Refused("stop accepts only strings, not patterns"),
    "no_stop_trim": Refused("use include_stop_str_in_output instead"),
    "samplers": Refused("the samplers and their order are fixed"),
    "min_keep": Refused("exactly one token is always kept", (0, 1)),
    "watermarking": Refused("watermarks are not available"),
    "logprob_token_ids": Refused("logprobs returns only the likeliest tokens"),
    "return_tokens_as_token_ids": Refused("use return_token_ids instead"),
    "return_prompt_token_ids": Refused("use POST /tokenize to read the ids of a prompt"),
    "return_meta_info": Refused("usage and GET /metrics contain the available figures"),
    "ngram_corpus_id": Refused("drafts are made only from the texts of the request"),
    **dict.fromkeys(("bad_words", "allowed_token_ids"), Refused("use logit_bias with -100 to forbid a token")),
    **dict.fromkeys(
        ("logits_processors", "custom_logit_processor", "custom_params"),
        Refused("the server runs no code from clients"),
    ),
    "vllm_xargs": Refused("the server has no plugins"),
    "session_params": Refused("the server stores no sessions: send the whole prompt"),
    "n_predict": Refused("use max_tokens instead", (-1,)),
    "n_cmpl": Refused("use n instead", (1,)),
    "n_probs": Refused("use logprobs instead", (0,)),
    "post_sampling_probs": Refused("logprobs are always computed before the sampling parameters are applied"),
    "n_keep": Refused("use truncate_prompt_tokens or truncate instead", (0, -1)),
    "n_discard": Refused("the server does not shift the context", (0,)),
    "n_indent": Refused("the server does not indent text", (0,)),
    "t_max_predict_ms": Refused("use timeout instead, in seconds", (0, -1)),
    "repeat_penalty": Refused("use repetition_penalty instead", (1,)),
    "typical_p": Refused(_NO_SUCH_SAMPLER, (1,)),
    **dict.fromkeys(("top_n_sigma", "adaptive_target"), Refused(_NO_SUCH_SAMPLER, (-1,))),
    **dict.fromkeys(
        ("xtc_probability", "dynatemp_range", "dry_multiplier", "mirostat"), Refused(_NO_SUCH_SAMPLER, (0,))
    ),
    "response_fields": Refused("an answer always contains all of its fields"),
    "return_tokens": Refused("use return_token_ids instead"),
    "return_hidden_states": Refused("use POST /v1/trace to read hidden states"),
    "return_routed_experts": Refused("this model has no experts"),
    "repetition_detection": Refused("only stop strings, stop tokens and limits end an answer"),
}

REFUSED_BY_COMPLETIONS: RefusedFields = {
    **REFUSED_BY_GENERATION,
    **dict.fromkeys(
        ("thinking_budget", "thinking_token_budget"), Refused("a completion has no separate reasoning", (-1,))
    ),
    **dict.fromkeys(("suffix", "input_prefix", "input_suffix"), Refused("filling in the middle is not available")),
}

REFUSED_BY_CHAT: RefusedFields = {
    **REFUSED_BY_GENERATION,
    "functions": Refused("use tools instead"),
    "function_call": Refused("use tools and tool_choice instead", ("none", "auto")),
    "separate_reasoning": Refused("reasoning is separate from content; include_reasoning false removes it", (True,)),
    "reasoning_format": Refused(
        "reasoning is separate from content; include_reasoning false removes it", ("auto", "deepseek")
    ),
    "parse_tool_calls": Refused("calls are always separate from content if the request has tools", (True,)),
    "audio": Refused("the server does not generate audio"),
    "modalities": Refused('the server generates only text; ["text"] is accepted', (["text"],)),
    "web_search_options": Refused("the server does not search"),
    "moderation": Refused("the server does not moderate"),
    "reasoning": Refused("reasoning_effort and thinking_budget control the length of reasoning"),
    "verbosity": Refused("the model does not support it", ("medium",)),
    "add_special_tokens": Refused("the chat template writes the special tokens"),
    "input_ids": Refused("use POST /v1/completions for token ids"),
    "task": Refused("the model does not support tasks"),
    "return_prompt_text": Refused("POST /detokenize returns the text of token ids from POST /tokenize"),
    "echo": Refused("use POST /v1/completions to repeat the prompt"),
    "documents": Refused("the server does not retrieve documents: write them into a message"),
    "chat_template": Refused("only the model and --chat-template set the chat template"),
    "thinking_forced_open": Refused("use chat_template_kwargs for the template's options"),
}

_HOW_TEXT_IS_SAMPLED = (
    *sorted({*SamplingParams.__struct_fields__} - {"eos_token_ids", "logprobs", "prompt_logprobs"}),
    "stop", "include_stop_str_in_output", "max_completion_tokens", "skip_special_tokens",
)  # fmt: skip

IGNORED_BY_EMBEDDINGS: Ignored = {
    **IGNORED_EVERYWHERE,
    **dict.fromkeys(_HOW_TEXT_IS_SAMPLED, "embeddings are not sampled"),
}

REFUSED_BY_EMBEDDINGS: RefusedFields = {
    **REFUSED_EVERYWHERE,
    **dict.fromkeys(("messages", "chat_template", "chat_template_kwargs"), Refused("use input instead")),
    "content": Refused("use input instead"),
    "embd_normalize": Refused("use normalize instead", (2,)),
    "embed_dtype": Refused("vectors are always float32", ("float32",)),
    "endianness": Refused("base64 is always little-endian", ("native", "little")),
    "use_activation": Refused("use normalize instead", (True,)),
}

IGNORED_BY_HEADS: Ignored = {
    **IGNORED_EVERYWHERE,
    "max_chunks_per_doc": "documents are not split; max_tokens_per_doc and truncate shorten them",
    "encoding_format": "numbers are always JSON",
}

REFUSED_BY_HEADS: RefusedFields = {
    **{name: refused for name, refused in REFUSED_EVERYWHERE.items() if name != "truncation_side"},
    "messages": Refused("the route accepts texts and pairs, not conversations"),
    "rank_fields": Refused("the field of a document is always text", (["text"],)),
    "padding": Refused("texts are never padded", ("do_not_pad",)),
}

IGNORED_BY_TOKENIZE: Ignored = {"mm_processor_kwargs": "the server accepts only text"}

REFUSED_BY_TOKENIZE: RefusedFields = {
    "content": Refused("use prompt instead"),
    "add_special": Refused("use add_special_tokens instead"),
    "with_pieces": Refused("use return_token_strs instead"),
    "parse_special": Refused("special tokens in a text are always recognised", (True,)),
    "chat_template": REFUSED_BY_CHAT["chat_template"],
}

IGNORED_IN_MESSAGES: Ignored = {
    **dict.fromkeys(("provider_specific_fields", "thinking_blocks", "images"), "a field of litellm's answers"),
    "annotations": "links in an answer; no chat template reads them",
    "cache_control": "the server manages the prefix cache",
    "weight": "a field of training data",
    "id": _ACCOUNT,
    "token_ids": "a field of answers; the chat template formats the text",
    "parsed": "a copy of content that the openai package makes",
}

IGNORED_IN_TOOLS: Ignored = {"cache_control": "the server manages the prefix cache"}

REFUSED_IN_MESSAGES: RefusedFields = {
    "refusal": Refused("send the text as content"),
    "audio": Refused("the server does not accept audio"),
    "function_call": Refused("use tool_calls instead"),
    "tools": Refused("send tools in the body of the request"),
    **dict.fromkeys(("prefix", "partial"), Refused("use continue_final_message to continue the last message")),
}

IGNORED_IN_STREAM_OPTIONS: Ignored = {"include_obfuscation": "the server never pads chunks"}

IGNORED_IN_RESPONSE_FORMAT: Ignored = {
    "name": "the name of a schema has no effect",
    "description": "the model does not receive it",
    "strict": "every answer follows its schema",
}

IGNORED_IN_STRUCTURED_OUTPUTS: Ignored = {
    **dict.fromkeys(("backend", "disable_fallback"), "there is only one backend"),
    "disable_any_whitespace": "JSON has one space after a comma or colon, unless whitespace_pattern is set",
}

REFUSED_IN_STRUCTURED_OUTPUTS: RefusedFields = {
    "disable_additional_properties": Refused("set additionalProperties in the schema"),
}
