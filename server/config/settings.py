"""All settings of the server: type, default and help of each, and contradictions between them.

A flag wins over its `LIGHTWELL_*` variable, the variable over the file of `--config`, and the file over the default.
`server.config.command_line` makes flags, `--help` and the reference's table of them. Independent of torch and of the
model's limits.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from lightwell.model.checkpoint.resolve import resolve
from lightwell.server.config import setting_types as types
from lightwell.server.config.auth.keys import hash_of
from lightwell.server.config.devices import as_text
from lightwell.server.config.lora_settings import adapter_folders, adapters_type, lora_problem
from lightwell.server.config.metric_aliases import parse_alias, repeated_name
from lightwell.server.config.model_settings import ModelOption, models_type
from lightwell.server.config.setting_sources import read_values
from lightwell.server.config.setting_types import SettingType
from lightwell.server.engine.config import EngineConfig


class SettingsError(ValueError):
    """A setting that cannot be used; the message names it, its value and the accepted values."""


@dataclass(frozen=True)
class Group:
    """A group of settings in the help."""

    title: str
    of_server: bool = False
    """True for settings of the whole server, False for settings of one model."""

    def setting(
        self,
        default: Any,
        setting_type: SettingType,
        help_text: str,
        *,
        shown_default: str | None = None,
        other_flags: Sequence[str] = (),
    ) -> Any:
        """Return the field of a setting; `shown_default` is shown by the help instead of the default, and `other_flags`
        are accepted too.
        """
        metadata = {"type": setting_type, "help": help_text, "shown_default": shown_default, "group": self}
        metadata["other_flags"] = other_flags
        return field(default=default, metadata=metadata)

    def repeated(self, setting_type: SettingType, help_text: str) -> Any:
        """Return the field of a setting of several values, none by default."""
        help_text += "; repeat the flag for several (variable: commas between)."
        return self.setting((), setting_type, help_text, shown_default="none")

    def switch(self, help_text: str, *, shown_default: str | None = None) -> Any:
        """Return the field of a setting that is on or off."""
        return self.setting(False, types.switch(), help_text, shown_default=shown_default)


COMMON = Group("common options")
SERVER = Group("common options", of_server=True)
MODEL = Group("model")
MODELS = Group("model", of_server=True)
ACCESS = Group("access", of_server=True)
COMPUTE = Group("computation")
BATCH = Group("batches and memory")
LIMITS = Group("limits")
SERVER_LIMITS = Group("limits", of_server=True)
RUNNING = Group("operation", of_server=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One field per setting; `from_sources` reads and checks them. Sizes are bytes, times seconds."""

    config: str | None = SERVER.setting(
        None,
        types.text("FILE"),
        "YAML file of settings by the names of their flags, such as port: 8000. Flags and variables win over it.",
        shown_default="none",
    )
    model: tuple[ModelOption, ...] = MODELS.setting(
        (),
        models_type(),
        "Model: a folder, a GGUF file, or a hub id such as org/name. NAME=MODEL names it in requests; repeat the flag "
        "for several models (variable: commas between).",
        shown_default="smollm2",
    )
    models_dir: str | None = MODELS.setting(
        None,
        types.text("DIR"),
        "Folder of models, each a folder or a GGUF file; a model is loaded at its first request.",
        shown_default="none",
    )
    max_loaded_models: int | None = MODELS.setting(
        None,
        types.integer(1, 1024),
        "Largest number of loaded models; one more unloads the model that was unused for the longest time.",
        shown_default="4, or the number of --model if that is more",
    )
    gguf_file: str | None = MODEL.setting(
        None, types.text("NAME"), "GGUF file, if MODEL has several.", shown_default="one"
    )
    revision: str | None = MODEL.setting(
        None,
        types.text("REVISION"),
        "Branch, tag or commit of a hub id. HF_TOKEN gives access to private and gated models.",
        shown_default="main",
    )
    served_model_name: str | None = SERVER.setting(
        None, types.text("NAME"), "Name of the model in requests and answers.", shown_default="the last part of MODEL"
    )
    host: str = SERVER.setting("127.0.0.1", types.text("HOST"), "Address to listen on; 0.0.0.0 is every interface.")
    port: int = SERVER.setting(8000, types.integer(0, 65535), "Port to listen on; 0 picks a free one and prints it.")
    root_path: str = ACCESS.setting(
        "", types.text("PATH", may_be_empty=True), "Path under which a proxy serves this server.", shown_default="none"
    )
    api_key: tuple[str, ...] = SERVER.setting(
        (),
        types.texts("KEY", hash_of, is_secret=True),
        "Key that clients must send as a bearer token; repeat the flag for several (variable: commas between). Other "
        "users of the machine can read flags: use the variable or --api-key-file. Kept as SHA-256.",
        shown_default="none: open",
    )
    api_key_file: str | None = ACCESS.setting(
        None,
        types.text("FILE"),
        "TOML file of keys with names, hashes, limits and expiry (docs/operating.md); read again when it changes.",
        shown_default="none",
    )
    cors_origin: tuple[str, ...] = ACCESS.repeated(
        types.origins(), "Origin that may call this server from its web pages"
    )
    embed_origins: tuple[str, ...] = ACCESS.repeated(
        types.origins("self"), "Origin (or self) that may show this server's page, /?embed=1, in a frame"
    )
    weights_access: Literal["open", "admin", "off"] | None = ACCESS.setting(
        None,
        types.choice("open", "admin", "off"),
        "Access to the numbers of the weights: all clients (open), admin keys only (admin), or no client (off).",
        shown_default="open without keys, else admin",
    )
    dtype: str = COMMON.setting(
        "auto",
        types.choice("auto", "float32", "bfloat16", "float16"),
        "Number format of the weights; auto is the format of the checkpoint.",
    )
    quantize: str = COMMON.setting(
        "none",
        types.choice("none", "int8", "int4", "fp8"),
        "Quantise matrices on load, which is smaller and faster: int8, int4, or fp8 on a GPU.",
    )
    activations: Literal["dtype", "int8", "auto"] = COMPUTE.setting(
        "dtype",
        types.choice("dtype", "int8", "auto"),
        "Precision of activations that multiply 8-bit and 4-bit weights on a CPU: --dtype; int8, which is faster "
        "and less exact; or auto, int8 where this CPU gains from it.",
    )
    device: str = COMMON.setting("auto", types.choice("auto", "cpu", "cuda"), "Device that runs the model.")
    devices: int | Literal["all"] | tuple[int, ...] = COMPUTE.setting(
        1,
        types.devices(),
        "Workers on this machine: N, each on a GPU or on its share of the CPU cores; all: one for each GPU; 0,2: one "
        "on each of these GPUs.",
    )
    tensor_parallel: int = COMPUTE.setting(
        1,
        types.integer(1),
        "Processes that share the model of a worker, each on a GPU or with its share of the threads.",
    )
    threads: int | None = COMPUTE.setting(
        None, types.integer(1), "Compute threads of a worker.", shown_default="one per core; 2 for small models"
    )
    max_model_len: int | Literal["auto"] | None = COMMON.setting(
        None,
        types.integer_or_auto(1, 10**12),
        "Largest sum of prompt and answer tokens; auto: as much of the model's context as fits.",
        shown_default="the model's context",
    )
    chat_template: str | None = MODEL.setting(
        None,
        types.text("FILE"),
        "Jinja file, or its text, that replaces the model's chat template.",
        shown_default="the model's",
    )
    generation_config: str = MODEL.setting(
        "auto",
        types.choice("auto", "vllm"),
        "Defaults of temperature, top_p, top_k, min_p and penalties: the model's generation_config.json (auto), or "
        "temperature 1 and no filters (vllm).",
    )
    lora: tuple[tuple[str, str], ...] = MODEL.repeated(
        adapters_type(), "Name and folder of a LoRA adapter in peft's format; requests set the name as model"
    )
    lora_root: str | None = MODEL.setting(
        None,
        types.text("DIR"),
        "Root folder of the adapters that POST /v1/load_lora_adapter may load.",
        shown_default="none: no adapters are loaded at run time",
    )
    max_loras: int = MODEL.setting(8, types.integer(1, 1024), "Largest number of loaded LoRA adapters.")
    max_lora_rank: int = MODEL.setting(64, types.integer(1, 4096), "Highest rank of a LoRA adapter.")
    max_num_seqs: int = BATCH.setting(64, types.integer(1, 1 << 20), "Largest number of sequences that run at once.")
    max_num_batched_tokens: int = BATCH.setting(2048, types.integer(1, 1 << 20), "Largest number of tokens per step.")
    max_capture_tokens: int | None = BATCH.setting(
        None,
        types.integer(1),
        "Largest number of tokens per step for traces, attention, lenses and head scores while text is generated; "
        "lower if they would take more than a tenth of the step's time.",
        shown_default="32; 256 on a GPU",
    )
    max_look_tokens: int | None = BATCH.setting(
        None,
        types.integer(1),
        "Deprecated, until 1.0: the older name of --max-capture-tokens.",
        shown_default="not set",
    )
    kv_cache_memory: int | None = COMMON.setting(
        None, types.byte_size(), "Memory for a worker's KV cache, such as 2GiB.", shown_default="from the free memory"
    )
    gpu_memory_utilization: float = BATCH.setting(
        0.9, types.share(), "Share of a GPU's memory for its worker: weights and steps first, then the KV cache."
    )
    worker_memory: int | None = BATCH.setting(
        None,
        types.byte_size(),
        "Memory limit of a worker, including weights and KV cache; a request without memory gets 503.",
        shown_default="the loaded model and nine tenths of the remaining memory",
    )
    block_size: int = BATCH.setting(32, types.integer(1, 1024), "Tokens per block of the KV cache.")
    no_prefix_caching: bool = BATCH.switch("Do not reuse the KV cache of shared prefixes.")
    share_prefix_cache: bool = ACCESS.switch(
        "Share cached prefixes between API keys: faster, but a key can detect the prompts of other keys.",
        shown_default="off: each key has its own",
    )
    batch_invariant: bool = COMPUTE.switch(
        "Give each answer the same bits under any load, also where that is slow: in float16, with fp8, and without "
        "Lightwell's kernels.",
        shown_default="on with Lightwell's kernels, off elsewhere",
    )
    no_batch_invariant: bool = COMPUTE.switch("Drop this guarantee; Lightwell's kernels still fulfil it.")
    speculation: Literal["auto", "off", "ngram", "draft"] = COMPUTE.setting(
        "auto",
        types.choice("auto", "off", "ngram", "draft"),
        "Drafts of next tokens, which a step checks together: from the repetitions of a text where they save time "
        "(auto) or four at each (ngram), four of --draft-model (draft), or none (off). Answers have the same bits.",
    )
    draft_model: str | None = MODEL.setting(
        None,
        types.text("MODEL"),
        "Smaller model with the vocabulary of MODEL, for --speculation draft. Its KV cache takes additional memory.",
        shown_default="none",
    )
    cuda_graphs: Literal["on", "off"] = COMPUTE.setting(
        "on", types.choice("on", "off"), "Run steps as CUDA graphs on a GPU."
    )
    kernels: Literal["auto", "native", "triton", "torch"] = COMPUTE.setting(
        "auto",
        types.choice("auto", "native", "triton", "torch"),
        "Kernels: Lightwell's where supported (auto), required on a CPU (native) or on a GPU (triton), or plain "
        "torch operations, which are slower (torch).",
    )
    kernel_arithmetic: Literal["auto", "float32", "bf16-dot"] = COMPUTE.setting(
        "auto",
        types.choice("auto", "float32", "bf16-dot"),
        "Multiplication by bfloat16 weights: the faster method of this CPU (auto), widened to float32 (the same bits "
        "on every CPU), or by the CPU's bfloat16 dot products (docs/reference.md).",
    )
    no_compile: bool = COMPUTE.switch("Deprecated, until 1.0: the older name of --kernels torch.")
    max_num_queued_requests: int = LIMITS.setting(
        1024, types.integer(0), "Largest number of waiting requests; further ones get 429."
    )
    max_num_queued_tokens: int = LIMITS.setting(
        4_194_304,
        types.integer(1),
        "Largest number of tokens (prompt and max_tokens) of all unfinished requests; further requests get 429.",
    )
    max_kv_demand: float = LIMITS.setting(
        16.0,
        types.decimal(1, 10**9, f"a number from 1 to {10**9}", "TIMES"),
        "Reject requests (429) when all unfinished ones could need more than TIMES times the KV cache.",
    )
    max_queue_time: float = LIMITS.setting(
        30.0,
        types.seconds(),
        "Largest expected waiting time at the present rate; requests above it get 429 at once. 0 is no limit.",
    )
    allow_priority: bool = SERVER_LIMITS.switch(
        "Accept negative priorities from clients; such requests are served before all others."
    )
    max_capture_bytes: int = LIMITS.setting(
        1 << 30,
        types.byte_size(),
        "Largest number of bytes of attention, embeddings and traces in flight, lowered to the worker's free memory; "
        "further requests get 429.",
    )
    max_response_bytes: int = LIMITS.setting(
        256 << 20, types.byte_size(), "Largest answer; requests for larger ones are rejected with 413 before they run."
    )
    max_body_bytes: int = SERVER_LIMITS.setting(
        32 << 20, types.byte_size(), "Largest request body; larger ones are rejected with 413."
    )
    batch_dir: str | None = RUNNING.setting(
        None,
        types.text("DIR"),
        "Folder of /v1/files and /v1/batches, used by one server at a time.",
        shown_default="none: no batches over HTTP",
    )
    max_batch_file_bytes: int = SERVER_LIMITS.setting(
        200 << 20, types.byte_size(), "Largest file of /v1/files; larger ones are rejected with 413."
    )
    max_batch_bytes: int = SERVER_LIMITS.setting(
        2 << 30, types.byte_size(), "Most bytes of all files of an API key; further uploads get 413."
    )
    max_batch_lines: int = SERVER_LIMITS.setting(50_000, types.integer(1), "Most lines of a batch.")
    max_batch_age: float = SERVER_LIMITS.setting(
        2_592_000.0,
        types.seconds(),
        "Age at which files, and batches that are over, are deleted.",
        shown_default="2592000: 30 days",
    )
    request_timeout: float = SERVER_LIMITS.setting(
        600.0, types.seconds(), "Time limit of a request, then 504; a request may set a lower one. 0 is no limit."
    )
    max_connections: int = SERVER_LIMITS.setting(
        4096, types.integer(1), "Largest number of connections; further ones get 503 except on /health and /metrics."
    )
    receive_timeout: float = SERVER_LIMITS.setting(
        30.0,
        types.seconds(),
        "Time limit for receiving the head of a request, and for its body plus one second for each 16 KiB; then 408. "
        "0 is no limit.",
    )
    send_timeout: float = SERVER_LIMITS.setting(
        60.0, types.seconds(), "Disconnect clients that read nothing of their answer for this long; 0 is no limit."
    )
    api_processes: int | Literal["auto"] = RUNNING.setting(
        1,
        types.integer_or_auto(1, 64),
        "Processes that answer HTTP requests on the port; auto: one for every four CPU cores next to a GPU, at most 8, "
        "else 1.",
        other_flags=("--api-server-count",),
    )
    worker_timeout: float = RUNNING.setting(
        30.0,
        types.seconds(),
        "Time without progress until a worker counts as hung: it is not ready and its requests get 503.",
    )
    load_timeout: float = RUNNING.setting(
        600.0, types.seconds(), "Restart a starting worker after this time without progress; 0 is no limit."
    )
    shutdown_grace: float = RUNNING.setting(30.0, types.seconds(), "Time limit for running requests after SIGTERM.")
    otlp_endpoint: str | None = RUNNING.setting(
        None,
        types.url(),
        "OpenTelemetry collector (OTLP over HTTP) for traces of requests; needs lightwell[otel].",
        shown_default="OTEL_EXPORTER_OTLP_ENDPOINT; without it no traces",
    )
    metric_alias: tuple[tuple[str, str], ...] = RUNNING.repeated(
        types.texts("NAME=METRIC", parse_alias),
        "Additional name of a metric in /metrics, such as vllm:num_requests_waiting=num_requests_waiting",
    )
    log_level: str = RUNNING.setting(
        "info", types.choice("debug", "info", "warning", "error"), "Lowest level that is logged."
    )
    log_format: str = RUNNING.setting(
        "text", types.choice("text", "json"), "Format of log lines: text or JSON objects."
    )

    @classmethod
    def from_sources(cls, flags: Mapping[str, str | Sequence[str] | bool], environ: Mapping[str, str]) -> "Settings":
        """Read the settings from flags (raw text by name), variables and --config. SettingsError names the source."""
        try:
            settings = cls(**read_values(dataclasses.fields(cls), flags, environ))
        except ValueError as error:
            raise SettingsError(str(error)) from None
        settings._check()
        return settings

    def _check(self) -> None:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise SettingsError(
                f"--max-num-batched-tokens {self.max_num_batched_tokens} is less than --max-num-seqs "
                f"{self.max_num_seqs}, but each running sequence needs one token per step; raise "
                "--max-num-batched-tokens or lower --max-num-seqs"
            )
        if self.batch_invariant and self.no_batch_invariant:
            raise SettingsError("--batch-invariant and --no-batch-invariant contradict each other; set one of them")
        if name := repeated_name(self.metric_alias):
            raise SettingsError(f"--metric-alias: {name} is given twice; each name is accepted for one metric")
        if (self.speculation == "draft") is (self.draft_model is None):
            raise SettingsError("--speculation draft and --draft-model are only accepted together; set both or none")
        if self.no_compile and self.kernels == "native":
            raise SettingsError("--no-compile means --kernels torch and contradicts --kernels native; set one of them")
        if self.max_look_tokens not in (None, self.max_capture_tokens or self.max_look_tokens):
            raise SettingsError(
                f"--max-look-tokens {self.max_look_tokens}, the old name of --max-capture-tokens, contradicts "
                f"{self.max_capture_tokens}; set one of them"
            )
        drafts = "speculation", "off" if self.speculation != "draft" else "draft", "off"
        devices, quantize = ("devices", as_text(self.devices), "1"), ("quantize", self.quantize, "none")
        for name, value, accepted in (drafts, devices, quantize, ("activations", self.activations, "dtype")):
            if self.tensor_parallel > 1 and value != accepted:
                parallel = f"--tensor-parallel {self.tensor_parallel}"
                raise SettingsError(f"{parallel} excludes --{name} {value}; --{name} {accepted} is accepted")
        if problem := lora_problem(self.lora, self.max_loras, self.lora_root, self.tensor_parallel):
            raise SettingsError(problem)
        if self.api_processes not in (1, "auto") and (self.models_dir is not None or len(self.model) > 1):
            several = "--models-dir" if self.models_dir is not None else f"--model given {len(self.model)} times"
            accepted = "one --model, or --api-processes 1, is accepted"
            raise SettingsError(f"--api-processes {self.api_processes} excludes {several}; {accepted}")
        if self.worker_timeout == 0:
            raise SettingsError("--worker-timeout must be above 0 (got 0)")
        if self.root_path and not re.fullmatch(r"(/[!-.0-~]+)+", self.root_path):
            raise SettingsError(f"--root-path {self.root_path!r:.200}: a path such as /lightwell is accepted")
        names = [option.name for option in self.model]
        is_for_one = names in ([None], [self.served_model_name]) or not (names or self.models_dir)
        if self.served_model_name is not None and not is_for_one:
            raise SettingsError(
                "--served-model-name is accepted with only one --model; for several models, use --model NAME=MODEL"
            )
        if self.lora and self.models_dir is not None and not self.model:
            raise SettingsError(
                "--lora needs --model: it adds adapters to the models of --model, not to the models of --models-dir"
            )
        if name := next((name for name in names if name is not None and names.count(name) > 1), None):
            raise SettingsError(f"--model: two models have the name {name!r}; each name is accepted once")

    @property
    def source(self) -> str | None:
        """Return the folder, file, name or hub id of the only, or first, model; None is the default model."""
        return self.model[0].source if self.model else None

    def of_models(self) -> "list[Settings]":
        """Return the settings of each model that is loaded at the start. Raises SettingsError."""
        options = self.model or (() if self.models_dir else (ModelOption(None),))
        return [self.of_model(option) for option in options]

    def of_model(self, option: ModelOption) -> "Settings":
        """Return the settings of one model: its own, and these. Raises SettingsError."""
        name = self.served_model_name if option.name is None else option.name
        settings = replace(self, **{"model": (option,), "served_model_name": name, **option.settings})
        settings._check()
        return settings

    @property
    def engine_kernels(self) -> Literal["auto", "native", "triton", "torch"]:
        """Return `kernels`, or the value of the older flag."""
        return "torch" if self.no_compile else self.kernels

    def engine_config(self, folder: Path) -> EngineConfig:
        """Return the part of the settings that the worker needs, for the model in `folder`."""
        own: dict[str, Any] = {
            "model": folder,
            "max_capture_tokens": self.max_capture_tokens or self.max_look_tokens,
            "kv_cache_bytes": _share(self.kv_cache_memory, self.tensor_parallel),
            "worker_memory": _share(self.worker_memory, self.tensor_parallel),
            "enable_prefix_caching": not self.no_prefix_caching,
            "batch_invariant": True if self.batch_invariant else False if self.no_batch_invariant else None,
            "kernels": self.engine_kernels,
            "adapters": adapter_folders(self.lora),
            "draft_model": None if self.draft_model is None else resolve(self.draft_model),
        }
        alike = {field.name for field in dataclasses.fields(EngineConfig)}.intersection(setting_names())
        return EngineConfig(**{name: getattr(self, name) for name in alike} | own)


def _share(whole: int | None, count: int) -> int | None:
    return None if whole is None else whole // count


def setting_names() -> tuple[str, ...]:
    """Return every setting's name, in the order of the help."""
    return tuple(setting.name for setting in dataclasses.fields(Settings))
