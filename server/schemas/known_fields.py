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

_ACCOUNT = "a label of the client's own"

IGNORED_EVERYWHERE: Ignored = {
    **dict.fromkeys(("user", "metadata", "safety_identifier", "custom_labels"), _ACCOUNT),
    "store": "nothing is stored",
    "service_tier": "there is one tier",
    "prompt_cache_key": "the prefix cache needs no key",
    **dict.fromkeys(("prompt_cache_retention", "prompt_cache_options"), "the server manages the prefix cache"),
    "session_id": "there are no sessions",
    **dict.fromkeys(("request_id", "rid"), "the header X-Request-Id names a request"),
    **dict.fromkeys(
        ("kv_transfer_params", "bootstrap_host", "bootstrap_port", "bootstrap_room"),
        "the KV cache stays on this server",
    ),
    "ec_transfer_params": "the encoder's output stays on this server",
    "data_parallel_rank": "the server chooses the worker",
    "routed_dp_rank": "the server chooses the worker",
    "disagg_prefill_dp_rank": "the server chooses the worker",
    **dict.fromkeys(("mm_processor_kwargs", "media_io_kwargs"), "nothing but text is read"),
    "stream_interval": "each token is sent at once",
}

_NO_BEAMS = "this server searches no beams"
_NO_SUCH_SAMPLER = "this sampler is not supported; temperature, top_k, top_p, min_p and the penalties are"

REFUSED_EVERYWHERE: RefusedFields = {
    **dict.fromkeys(("lora_path", "lora"), Refused("a LoRA adapter is named as the model")),
    "extra_key": Refused("cache_salt is its name"),
    "truncation_side": Refused("truncate_prompt_tokens keeps the end of a prompt", ("left",)),
    "image_data": Refused("this server reads no images"),
    **dict.fromkeys(("prompt_embeds", "input_embeds"), Refused("a prompt is text or token ids")),
}

_OPTIONS_OF_SAMPLERS = (
    "dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers", "xtc_threshold",
    "dynatemp_exponent", "mirostat_tau", "mirostat_eta", "adaptive_decay", "repeat_last_n",
)  # fmt: skip

IGNORED_BY_GENERATION: Ignored = {
    **IGNORED_EVERYWHERE,
    **dict.fromkeys(_OPTIONS_OF_SAMPLERS, "it is an option of a sampler that is not supported"),
    **dict.fromkeys(("routed_experts_prompt_start", "routed_experts_start_len"), "this model has no experts"),
    "return_token_offsets": "of vLLM's routes that only render a prompt",
    **dict.fromkeys(
        ("return_mm_kwargs", "images_config", "max_dynamic_patch", "min_dynamic_patch", "use_audio_in_video"),
        "nothing but text is read",
    ),
    **dict.fromkeys(("cache_prompt", "n_cache_reuse"), "the prefix cache is the server's"),
    **dict.fromkeys(("id_slot", "slot_id"), "the server chooses the slot"),
    "penalize_nl": "a newline is a token like any other",
    "timings_per_token": "GET /metrics has the times of tokens",
    "return_progress": "GET /metrics has the times of prompts",
    "return_cached_tokens_details": "usage has the cached tokens",
    "backend_sampling": "the server chooses where it samples",
    "spaces_between_special_tokens": "text is decoded as the tokenizer decodes it",
    "sse_ping_interval": "a stream is not pinged",
    "guided_decoding_backend": "there is one",
    "chat_format": "the chat template is the model's",
}

_OF_CHATS = (
    "parallel_tool_calls", "separate_reasoning", "stream_reasoning", "include_reasoning", "reasoning_format",
    "parse_tool_calls",
)  # fmt: skip

IGNORED_BY_COMPLETIONS: Ignored = {
    **IGNORED_BY_GENERATION,
    **dict.fromkeys(_OF_CHATS, "a completion is plain text, without separate calls or reasoning"),
    "prediction": "it would change only the speed, and is read with chats",
}

IGNORED_BY_CHAT: Ignored = {**IGNORED_BY_GENERATION, "stream_reasoning": "reasoning is sent as it comes"}

REFUSED_BY_GENERATION: RefusedFields = {
    **REFUSED_EVERYWHERE,
    **dict.fromkeys(("use_beam_search", "early_stopping"), Refused(_NO_BEAMS)),
    "length_penalty": Refused(_NO_BEAMS, (1,)),
    "grammar_lazy": Refused("a grammar holds from the first token of the answer"),
    "grammar_triggers": Refused("a grammar holds from the first token of the answer"),
    "stop_regex": Refused("stop takes strings"),
    "no_stop_trim": Refused("include_stop_str_in_output is its name"),
    "samplers": Refused("the samplers and their order are fixed"),
    "min_keep": Refused("one token at least is always kept, and no more", (0, 1)),
    "watermarking": Refused("answers bear no watermark"),
    "logprob_token_ids": Refused("logprobs are of the likeliest tokens"),
    "return_tokens_as_token_ids": Refused("return_token_ids gives the ids"),
    "return_prompt_token_ids": Refused("POST /tokenize gives the ids of a prompt"),
    "return_meta_info": Refused("usage and GET /metrics have the available figures"),
    "ngram_corpus_id": Refused("drafts come from the request's own texts"),
    **dict.fromkeys(("bad_words", "allowed_token_ids"), Refused("logit_bias of -100 forbids a token")),
    **dict.fromkeys(
        ("logits_processors", "custom_logit_processor", "custom_params"),
        Refused("nothing that a client sends runs as code"),
    ),
    "vllm_xargs": Refused("there are no plugins here"),
    "session_params": Refused("there are no sessions: send the whole prompt"),
    "n_predict": Refused("max_tokens is the number of generated tokens", (-1,)),
    "n_cmpl": Refused("n is the number of choices", (1,)),
    "n_probs": Refused("logprobs returns the likeliest tokens", (0,)),
    "post_sampling_probs": Refused("logprobs are computed from the model's own distribution"),
    "n_keep": Refused("truncate_prompt_tokens and truncate cut a prompt", (0, -1)),
    "n_discard": Refused("the context does not shift", (0,)),
    "n_indent": Refused("text is not indented", (0,)),
    "t_max_predict_ms": Refused("timeout bounds the time, in seconds", (0, -1)),
    "repeat_penalty": Refused("repetition_penalty is its name", (1,)),
    "typical_p": Refused(_NO_SUCH_SAMPLER, (1,)),
    **dict.fromkeys(("top_n_sigma", "adaptive_target"), Refused(_NO_SUCH_SAMPLER, (-1,))),
    **dict.fromkeys(
        ("xtc_probability", "dynatemp_range", "dry_multiplier", "mirostat"), Refused(_NO_SUCH_SAMPLER, (0,))
    ),
    "response_fields": Refused("an answer has all of its fields"),
    "return_tokens": Refused("return_token_ids is its name"),
    "return_hidden_states": Refused("POST /v1/trace gives hidden states"),
    "return_routed_experts": Refused("this model has no experts"),
    "repetition_detection": Refused("nothing but stop strings, tokens and limits ends an answer"),
}

REFUSED_BY_COMPLETIONS: RefusedFields = {
    **REFUSED_BY_GENERATION,
    **dict.fromkeys(
        ("thinking_budget", "thinking_token_budget"), Refused("a completion is text, with no thought", (-1,))
    ),
    **dict.fromkeys(("suffix", "input_prefix", "input_suffix"), Refused("this model cannot fill in the middle")),
}

REFUSED_BY_CHAT: RefusedFields = {
    **REFUSED_BY_GENERATION,
    "functions": Refused("send tools"),
    "function_call": Refused("send tools and tool_choice", ("none", "auto")),
    "separate_reasoning": Refused("reasoning is separate from content; include_reasoning false drops it", (True,)),
    "reasoning_format": Refused(
        "reasoning is separate from content; include_reasoning false drops it", ("auto", "deepseek")
    ),
    "parse_tool_calls": Refused("calls are separate from content if tools are sent", (True,)),
    "audio": Refused("this server makes no audio"),
    "modalities": Refused('this server generates only text; ["text"] is accepted', (["text"],)),
    "web_search_options": Refused("this server does not search"),
    "moderation": Refused("this server does not moderate"),
    "reasoning": Refused("reasoning_effort and thinking_budget control the length of reasoning"),
    "verbosity": Refused("this model has no such setting", ("medium",)),
    "add_special_tokens": Refused("the chat template writes the special tokens"),
    "input_ids": Refused("POST /v1/completions takes token ids"),
    "task": Refused("this model has no such tasks"),
    "return_prompt_text": Refused("POST /detokenize returns the text of token ids from POST /tokenize"),
    "echo": Refused("POST /v1/completions repeats its prompt"),
    "documents": Refused("this server retrieves nothing: write them into a message"),
    "chat_template": Refused("the chat template is the model's, or --chat-template's"),
    "thinking_forced_open": Refused("chat_template_kwargs sets the template's options for reasoning"),
}

_HOW_TEXT_IS_SAMPLED = (
    *sorted({*SamplingParams.__struct_fields__} - {"eos_token_ids", "logprobs", "prompt_logprobs"}),
    "stop", "include_stop_str_in_output", "max_completion_tokens", "skip_special_tokens",
)  # fmt: skip

IGNORED_BY_EMBEDDINGS: Ignored = {
    **IGNORED_EVERYWHERE,
    **dict.fromkeys(_HOW_TEXT_IS_SAMPLED, "an embedding is computed, not sampled"),
}

REFUSED_BY_EMBEDDINGS: RefusedFields = {
    **REFUSED_EVERYWHERE,
    **dict.fromkeys(("messages", "chat_template", "chat_template_kwargs"), Refused("an embedding is of input")),
    "content": Refused("input is its name"),
    "embd_normalize": Refused("normalize controls the length of vectors", (2,)),
    "embed_dtype": Refused("vectors are float32", ("float32",)),
    "endianness": Refused("base64 is little-endian", ("native", "little")),
    "use_activation": Refused("normalize controls the length of vectors", (True,)),
}

IGNORED_BY_HEADS: Ignored = {
    **IGNORED_EVERYWHERE,
    "max_chunks_per_doc": "a document is not split: max_tokens_per_doc and truncate cut it",
    "encoding_format": "an answer's numbers are JSON",
}

REFUSED_BY_HEADS: RefusedFields = {
    **{name: refused for name, refused in REFUSED_EVERYWHERE.items() if name != "truncation_side"},
    "messages": Refused("texts and pairs are read, and no conversations"),
    "rank_fields": Refused("a document is its text", (["text"],)),
    "padding": Refused("nothing is padded", ("do_not_pad",)),
}

IGNORED_BY_TOKENIZE: Ignored = {"mm_processor_kwargs": "nothing but text is read"}

REFUSED_BY_TOKENIZE: RefusedFields = {
    "content": Refused("prompt is its name"),
    "add_special": Refused("add_special_tokens is its name"),
    "with_pieces": Refused("return_token_strs is its name"),
    "parse_special": Refused("special tokens in a text are always read as such", (True,)),
    "chat_template": REFUSED_BY_CHAT["chat_template"],
}

IGNORED_IN_MESSAGES: Ignored = {
    **dict.fromkeys(("provider_specific_fields", "thinking_blocks", "images"), "of litellm's answers"),
    "annotations": "links of an answer, which no template reads",
    "cache_control": "the server manages the prefix cache",
    "weight": "of training data",
    "id": _ACCOUNT,
    "token_ids": "of answers; the template writes text",
    "parsed": "the openai package's reading of content",
}

IGNORED_IN_TOOLS: Ignored = {"cache_control": "the server manages the prefix cache"}

REFUSED_IN_MESSAGES: RefusedFields = {
    "refusal": Refused("write it as content"),
    "audio": Refused("this server reads no audio"),
    "function_call": Refused("write it as tool_calls"),
    "tools": Refused("send tools with the request"),
    **dict.fromkeys(("prefix", "partial"), Refused("continue_final_message continues the last message")),
}

IGNORED_IN_STREAM_OPTIONS: Ignored = {"include_obfuscation": "chunks are never padded"}

IGNORED_IN_RESPONSE_FORMAT: Ignored = {
    "name": "a schema's name changes nothing",
    "description": "the model does not receive it",
    "strict": "every answer keeps to its schema",
}

IGNORED_IN_STRUCTURED_OUTPUTS: Ignored = {
    **dict.fromkeys(("backend", "disable_fallback"), "there is one"),
    "disable_any_whitespace": "JSON has one space after a comma or colon, unless whitespace_pattern says other",
}

REFUSED_IN_STRUCTURED_OUTPUTS: RefusedFields = {
    "disable_additional_properties": Refused("write additionalProperties into the schema"),
}
