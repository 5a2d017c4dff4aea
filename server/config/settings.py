"""Every setting of the server, once: flag, `LIGHTWELL_*` variable, `--help` and the README's table come from this file.

A flag wins over its variable, the variable over the default. Knows nothing of torch, of the model's own
limits or of how a setting is used.
"""

import argparse
import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from server.config import setting_types as kinds
from server.config.devices import as_text
from server.config.metric_aliases import repeated_name
from server.config.setting_types import Kind
from server.engine.config import EngineConfig

ENV_PREFIX = "LIGHTWELL_"


class SettingsError(ValueError):
    """A setting that cannot be used; the message names it, its value and what is accepted."""


def _setting(default: Any, kind: Kind, help_text: str, *, shown_default: str | None = None) -> Any:
    return field(default=default, metadata={"kind": kind, "help": help_text, "shown_default": shown_default})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One field per setting; `from_sources` reads and checks them. Sizes are bytes, times seconds."""

    model: str | None = _setting(
        None,
        kinds.text("MODEL"),
        "Model folder, or a hub id such as org/name.",
        shown_default="the model that ships with Lightwell",
    )
    served_model_name: str | None = _setting(
        None, kinds.text("NAME"), "Name of the model on the wire.", shown_default="the last part of MODEL"
    )
    host: str = _setting("127.0.0.1", kinds.text("HOST"), "Address to listen on; 0.0.0.0 is every interface.")
    port: int = _setting(8000, kinds.integer(0, 65535), "Port to listen on; 0 picks a free one and prints it.")
    root_path: str = _setting(
        "", kinds.text("PATH"), "Path under which a proxy serves this server.", shown_default="none"
    )
    api_key: tuple[str, ...] = _setting(
        (),
        kinds.secrets("KEY"),
        "Key that clients must send as a bearer token; repeat the flag for several (variable: commas between). Other "
        "users of the machine can read flags: use the variable or --api-key-file. Kept as SHA-256.",
        shown_default="none: open",
    )
    api_key_file: str | None = _setting(
        None,
        kinds.text("FILE"),
        "TOML file of keys with names, hashes, limits and expiry (docs/operating.md); read again when it changes.",
        shown_default="none",
    )
    cors_origin: tuple[str, ...] = _setting(
        (),
        kinds.origins(),
        "Origin whose web pages may call this server; repeat the flag for several (variable: commas between).",
        shown_default="none",
    )
    dtype: str = _setting(
        "auto",
        kinds.choice("auto", "float32", "bfloat16", "float16"),
        "Number format of weights; auto is the checkpoint's.",
    )
    quantize: str = _setting(
        "none",
        kinds.choice("none", "int8"),
        "int8 keeps matrices in 8 bits, made on load: smaller, and faster on a CPU.",
    )
    device: str = _setting("auto", kinds.choice("auto", "cpu", "cuda"), "Where the model runs.")
    devices: int | Literal["all"] | tuple[int, ...] = _setting(
        1,
        kinds.devices(),
        "Workers on this machine: so many, each on a GPU or on its share of the CPU cores; all: one for each GPU; 0,2: "
        "on these GPUs.",
    )
    tensor_parallel: int = _setting(
        1,
        kinds.integer(1),
        "Processes that hold a worker's model together, each on a GPU or with its share of the threads.",
    )
    threads: int | None = _setting(
        None, kinds.integer(1), "Compute threads of a worker.", shown_default="one per core; 2 for small models"
    )
    max_model_len: int | None = _setting(
        None, kinds.integer(1), "Most tokens of prompt and answer together.", shown_default="the model's context"
    )
    chat_template: str | None = _setting(
        None,
        kinds.text("FILE"),
        "Jinja file, or its text, to use instead of the model's chat template.",
        shown_default="the model's",
    )
    generation_config: str = _setting(
        "auto",
        kinds.choice("auto", "vllm"),
        "Where temperature, top_p, top_k, min_p and penalties of requests that do not say them come from: auto: the "
        "model's generation_config.json; vllm: none of that file, so 1 and no filters.",
    )
    max_num_seqs: int = _setting(64, kinds.integer(1), "Most sequences that run at once.")
    max_num_batched_tokens: int = _setting(2048, kinds.integer(1), "Most tokens of one engine step.")
    max_look_tokens: int | None = _setting(
        None,
        kinds.integer(1),
        "Most tokens of one step for traces, attention, lenses and head scores while text is generated; fewer where "
        "they would take a tenth of its time.",
        shown_default="32; 256 on a GPU",
    )
    kv_cache_memory: int | None = _setting(
        None, kinds.byte_size(), "Memory for a worker's KV cache, such as 2GiB.", shown_default="from the free memory"
    )
    worker_memory: int | None = _setting(
        None,
        kinds.byte_size(),
        "Memory a worker may take, weights and KV cache included; a request for which there is none left is answered "
        "503.",
        shown_default="nine tenths of what machine or container have left",
    )
    block_size: int = _setting(32, kinds.integer(1, 1024), "Tokens per block of the KV cache.")
    no_prefix_caching: bool = _setting(False, kinds.switch(), "Do not reuse the KV cache of shared prefixes.")
    batch_invariant: bool = _setting(
        False,
        kinds.switch(),
        "Give each answer the same bits whatever runs beside it, where that is slow too: on a GPU, and in float16.",
        shown_default="on with Lightwell's kernels, off elsewhere",
    )
    no_batch_invariant: bool = _setting(
        False, kinds.switch(), "Do not promise that; Lightwell's kernels keep to it all the same."
    )
    cuda_graphs: str = _setting(
        "compiled",
        kinds.choice("compiled", "plain", "off"),
        "Steps of single tokens on a GPU as CUDA graphs: of compiled kernels, plain (a quicker start), or not so.",
    )
    kernels: Literal["auto", "native", "torch"] = _setting(
        "auto",
        kinds.choice("auto", "native", "torch"),
        "What computes on a CPU: Lightwell's kernels where they can (auto) or else no start (native), or plain torch "
        "operations, which are slower.",
    )
    kernel_arithmetic: Literal["auto", "float32", "bf16-dot"] = _setting(
        "auto",
        kinds.choice("auto", "float32", "bf16-dot"),
        "How the kernels multiply by bfloat16 weights: as this CPU is known to be faster, widened to float32 (the same "
        "bits on every CPU), or by the CPU's dot products of bfloat16, where it has them (docs/reference.md).",
    )
    no_compile: bool = _setting(
        False, kinds.switch(), "Deprecated, until 1.0: stands for --kernels torch --cuda-graphs plain."
    )
    max_num_queued_requests: int = _setting(
        1024, kinds.integer(0), "Most requests that wait beyond those that run; more are answered 429."
    )
    max_num_queued_tokens: int = _setting(
        4_194_304,
        kinds.integer(1),
        "Most tokens (prompt and max_tokens) of all unfinished requests; more are answered 429.",
    )
    max_kv_demand: float = _setting(
        16.0,
        kinds.decimal(1, "a number", "TIMES"),
        "Most KV cache that all unfinished requests may come to need, in times the cache there is; more are answered "
        "429.",
    )
    max_queue_time: float = _setting(
        30.0,
        kinds.seconds(),
        "Time to wait for its turn, as expected at the present rate, beyond which a request is answered 429 at once; 0 "
        "is no limit.",
    )
    allow_priority: bool = _setting(
        False, kinds.switch(), "Let clients set a priority below 0, with which their requests go before all others'."
    )
    max_capture_bytes: int = _setting(
        1 << 30,
        kinds.byte_size(),
        "Most bytes of attention, embeddings and traces in flight, or less where the worker has room for less; more "
        "are answered 429.",
    )
    max_response_bytes: int = _setting(
        256 << 20, kinds.byte_size(), "Largest answer; larger ones are refused with 413 before anything runs."
    )
    max_body_bytes: int = _setting(
        32 << 20, kinds.byte_size(), "Largest request body; larger ones are refused with 413."
    )
    request_timeout: float = _setting(
        600.0, kinds.seconds(), "Time a request may take, then 504; requests may ask for less. 0 is no limit."
    )
    max_connections: int = _setting(
        4096, kinds.integer(1), "Most open connections; on more only /health and /metrics are answered, the rest 503."
    )
    receive_timeout: float = _setting(
        30.0,
        kinds.seconds(),
        "Time for the head of a request to come, and for its body, which has a second more for each 16 KiB; then 408. "
        "0 is no limit.",
    )
    send_timeout: float = _setting(
        60.0,
        kinds.seconds(),
        "Time in which a client takes nothing of its answer, then its connection ends; 0 is no limit.",
    )
    worker_timeout: float = _setting(
        30.0, kinds.seconds(), "Silence after which a worker counts as hung: not ready, its requests answered 503."
    )
    load_timeout: float = _setting(
        600.0,
        kinds.seconds(),
        "Time after which a worker that starts and gets no further is killed and started again; 0 is no limit.",
    )
    shutdown_grace: float = _setting(30.0, kinds.seconds(), "Time for running requests to end after SIGTERM.")
    otlp_endpoint: str | None = _setting(
        None,
        kinds.text("URL"),
        "OpenTelemetry collector (OTLP over HTTP) that gets a trace of each request; needs lightwell[otel].",
        shown_default="OTEL_EXPORTER_OTLP_ENDPOINT; without it no traces",
    )
    metric_alias: tuple[tuple[str, str], ...] = _setting(
        (),
        kinds.metric_aliases(),
        "Another name under which /metrics shows a gauge too, such as vllm:num_requests_waiting=num_requests_waiting; "
        "repeat the flag for several (variable: commas between).",
        shown_default="none",
    )
    log_level: str = _setting("info", kinds.choice("debug", "info", "warning", "error"), "Least level that is logged.")
    log_format: str = _setting("text", kinds.choice("text", "json"), "One line of text, or one JSON object, per event.")

    @classmethod
    def from_sources(cls, flags: Mapping[str, str | Sequence[str] | bool], environ: Mapping[str, str]) -> "Settings":
        """Settings from parsed flags (raw text by field name) and the environment; SettingsError names the culprit."""
        values: dict[str, Any] = {}
        for setting in dataclasses.fields(cls):
            kind: Kind = setting.metadata["kind"]
            variable = ENV_PREFIX + setting.name.upper()
            raw = flags.get(setting.name)
            if raw is not None and raw is not False and raw != []:
                values[setting.name] = _read(kind, raw, flag_name(setting.name))
            elif environ.get(variable) and not _is_service_link(environ[variable]):
                values[setting.name] = _read(kind, environ[variable], variable)
        settings = cls(**values)
        settings._check()
        return settings

    def _check(self) -> None:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise SettingsError(
                f"--max-num-batched-tokens {self.max_num_batched_tokens} is less than --max-num-seqs "
                f"{self.max_num_seqs}, but each running sequence needs a token per step: raise one or lower the other"
            )
        if self.batch_invariant and self.no_batch_invariant:
            raise SettingsError("--batch-invariant and --no-batch-invariant contradict each other; give one of them")
        if name := repeated_name(self.metric_alias):
            raise SettingsError(f"--metric-alias: {name} is given twice; each name is accepted for one gauge")
        if self.no_compile and self.kernels == "native":
            raise SettingsError(
                "--no-compile stands for --kernels torch, and --kernels native contradicts it; give one"
            )
        if self.tensor_parallel > 1 and self.devices != 1:
            raise SettingsError(
                f"--tensor-parallel {self.tensor_parallel} is of one worker, and --devices {as_text(self.devices)} "
                "asks for others; --devices 1 is accepted with it"
            )
        if self.tensor_parallel > 1 and self.quantize != "none":
            raise SettingsError(
                f"--tensor-parallel {self.tensor_parallel} does not go with --quantize {self.quantize}; none is "
                "accepted with it"
            )
        if self.worker_timeout == 0:
            raise SettingsError("--worker-timeout 0 would call every worker hung; a time above 0 is accepted")
        if self.root_path and (not self.root_path.startswith("/") or self.root_path.endswith("/")):
            raise SettingsError(f"--root-path {self.root_path!r}: a path such as /lightwell is accepted")

    @property
    def engine_kernels(self) -> Literal["auto", "native", "torch"]:
        """`kernels`, or what the older flag stands for."""
        return "torch" if self.no_compile else self.kernels

    def engine_config(self, folder: Path) -> EngineConfig:
        """The part of the settings that the worker needs, for the model in `folder`."""
        return EngineConfig(
            model=folder,
            dtype=self.dtype,
            quantize=self.quantize,
            device=self.device,
            max_model_len=self.max_model_len,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_look_tokens=self.max_look_tokens,
            kv_cache_bytes=_share(self.kv_cache_memory, self.tensor_parallel),
            worker_memory=_share(self.worker_memory, self.tensor_parallel),
            tensor_parallel=self.tensor_parallel,
            block_size=self.block_size,
            enable_prefix_caching=not self.no_prefix_caching,
            batch_invariant=True if self.batch_invariant else False if self.no_batch_invariant else None,
            cuda_graphs="plain" if self.no_compile and self.cuda_graphs == "compiled" else self.cuda_graphs,
            kernels=self.engine_kernels,
            kernel_arithmetic=self.kernel_arithmetic,
            threads=self.threads,
        )


def _share(whole: int | None, count: int) -> int | None:
    return None if whole is None else whole // count


def _is_service_link(value: str) -> bool:
    """Kubernetes sets LIGHTWELL_PORT=tcp://... in the pods beside a service named lightwell; it means nothing here."""
    return value.startswith("tcp://")


_NO_SETTINGS = {"LIGHTWELL_KERNEL_LEVEL", "LIGHTWELL_KERNEL_LIBRARY"}
"""Variables that `model.kernels.library` reads, in whatever program computes with it."""


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """`LIGHTWELL_*` variables that nothing reads: most likely misspelt."""
    known = _NO_SETTINGS | {ENV_PREFIX + name.upper() for name in setting_names()}
    return sorted(
        name
        for name, value in environ.items()
        if name.startswith(ENV_PREFIX)
        and name not in known
        and not name.startswith(("LIGHTWELL_PORT_", "LIGHTWELL_SERVICE_"))
        and not _is_service_link(value)
    )


def deprecations(settings: Settings) -> list[str]:
    """What to say of settings that are still understood, a line each."""
    if not settings.no_compile:
        return []
    return ["--no-compile goes with 1.0; it stands for --kernels torch --cuda-graphs plain, which say the same"]


def _read(kind: Kind, raw: str | Sequence[str] | bool, source: str) -> Any:
    if raw is True:
        return True
    try:
        if kind.is_list and not isinstance(raw, str):
            return tuple(value for text in cast("Sequence[str]", raw) for value in kind.parse(text))
        return kind.parse(cast("str", raw))
    except ValueError as error:
        shown = "the value" if kind.is_secret else repr(raw)
        raise SettingsError(f"{source}: {shown} is not usable; {error}") from None


def setting_names() -> tuple[str, ...]:
    """Every setting, in the order of the help."""
    return tuple(setting.name for setting in dataclasses.fields(Settings))


def flag_name(name: str) -> str:
    """`max_num_seqs` -> `--max-num-seqs`."""
    return "--" + name.replace("_", "-")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give the parser one flag per setting. Values stay text: `Settings.from_sources` reads and checks them."""
    parser.add_argument("model_argument", nargs="?", metavar="MODEL", help=_help("model"))
    add_flags(parser, setting_names())


def add_flags(parser: argparse.ArgumentParser, names: Collection[str]) -> None:
    """Give the parser the flags of these settings."""
    for setting in dataclasses.fields(Settings):
        if setting.name not in names:
            continue
        kind: Kind = setting.metadata["kind"]
        options: dict[str, Any] = {"dest": setting.name, "help": _help(setting.name), "default": None}
        if kind.is_flag:
            options["action"] = "store_true"
        else:
            options["metavar"] = kind.metavar
            if kind.is_list:
                options["action"] = "append"
        parser.add_argument(flag_name(setting.name), **options)


def from_arguments(arguments: argparse.Namespace, environ: Mapping[str, str]) -> Settings:
    """Settings from what `add_arguments` made the parser read; SettingsError on a bad value."""
    flags: dict[str, Any] = {name: getattr(arguments, name) for name in setting_names()}
    positional = arguments.model_argument
    if positional is not None and flags["model"] not in (None, positional):
        raise SettingsError(f"MODEL {positional!r} and --model {flags['model']!r} differ; give one of them")
    flags["model"] = flags["model"] if positional is None else positional
    return Settings.from_sources(flags, environ)


def shown_default(name: str) -> str:
    """The default as a person would write it."""
    setting = Settings.__dataclass_fields__[name]
    if setting.metadata["shown_default"] is not None:
        return str(setting.metadata["shown_default"])
    if setting.metadata["kind"].metavar == "BYTES":
        return format_bytes(cast("int", setting.default))
    if isinstance(setting.default, bool):
        return "off"
    return f"{setting.default:g}" if isinstance(setting.default, float) else str(setting.default)


def format_bytes(size: int) -> str:
    """A size in the largest binary unit that keeps it whole: 1073741824 -> 1GiB."""
    for unit, power in (("TiB", 4), ("GiB", 3), ("MiB", 2), ("KiB", 1)):
        if size >= 1024**power and size % 1024**power == 0:
            return f"{size // 1024**power}{unit}"
    return str(size)


def _help(name: str) -> str:
    text = Settings.__dataclass_fields__[name].metadata["help"]
    return f"{text} [{ENV_PREFIX}{name.upper()}; default: {shown_default(name)}]".replace("%", "%%")


def settings_table() -> str:
    """The README's table of settings, in Markdown."""
    lines = ["| flag | variable | default | meaning |", "|---|---|---|---|"]
    for setting in dataclasses.fields(Settings):
        kind: Kind = setting.metadata["kind"]
        value = f" {kind.metavar}" if kind.metavar else ""
        flag = f"`{flag_name(setting.name)}{value}`".replace("|", "\\|")
        meaning = setting.metadata["help"].replace("|", "\\|")
        lines.append(f"| {flag} | `{ENV_PREFIX}{setting.name.upper()}` | {shown_default(setting.name)} | {meaning} |")
    return "\n".join(lines)
