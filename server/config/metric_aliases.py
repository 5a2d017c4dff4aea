"""Additional names of metrics, for a scheduler or a dashboard of vLLM: the metrics that may have one, and their form on
the command line.

It needs the standard library only. `server.observability.metrics` shows the metrics under both names.
"""

import re
from collections import Counter
from collections.abc import Sequence

METRICS = (
    "num_requests_running", "num_requests_waiting", "kv_cache_usage_ratio", "inflight_capture_bytes",
    "cache_config_info", "prompt_tokens_total", "generation_tokens_total", "num_preemptions_total",
    "prefix_cache_queries_total", "prefix_cache_hits_total", "request_success_total", "time_to_first_token_seconds",
    "inter_token_latency_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds",
    "request_prefill_time_seconds", "request_decode_time_seconds", "request_prompt_tokens",
    "request_generation_tokens", "iteration_tokens",
)  # fmt: skip
"""Gauges, counters and histograms that may have another name, without `lightwell_`."""

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_TAKEN = ("lightwell_", "process_")


def parse_alias(text: str) -> tuple[str, str]:
    """Read `NAME=METRIC` as (name, metric without `lightwell_`). Raises ValueError with the accepted forms."""
    name, separator, metric = (part.strip() for part in text.partition("="))
    metric = metric.removeprefix("lightwell_")
    if not separator or not _NAME.fullmatch(name):
        raise ValueError(
            "NAME=METRIC is accepted, with a NAME of letters, digits, _ and : that does not begin with a digit, such "
            "as vllm:num_requests_waiting=num_requests_waiting"
        )
    if name.startswith(_TAKEN):
        raise ValueError(
            f"{name} is reserved for the server's metrics; a name that does not begin with {' or '.join(_TAKEN)} is "
            "accepted"
        )
    if metric not in METRICS:
        raise ValueError(f"{metric!r} cannot have an alias; accepted are {', '.join(METRICS)}")
    if metric.endswith("_total") and not name.endswith("_total"):
        raise ValueError(f"{metric} is a counter, so its name must end in _total; {name}_total is accepted")
    return name, metric


def repeated_name(aliases: Sequence[tuple[str, str]]) -> str | None:
    """Return a name that is given more than once, or None."""
    return next((name for name, count in Counter(name for name, _ in aliases).items() if count > 1), None)
