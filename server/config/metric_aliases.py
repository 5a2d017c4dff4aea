"""Gives gauges second names, so that a scheduler that asks for vLLM's finds ours: which may have one, how it is
written.

It needs the standard library only and knows no registry; `server.observability.metrics` shows the gauges under both
names.
"""

import re
from collections import Counter
from collections.abc import Sequence

GAUGES = (
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_ratio",
    "inflight_capture_bytes",
    "cache_config_info",
)
"""Gauges that may have another name, without `lightwell_`."""

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_TAKEN = ("lightwell_", "process_")


def parse_alias(text: str) -> tuple[str, str]:
    """Read `NAME=GAUGE` as (name, gauge without `lightwell_`). Raises ValueError that says what is accepted."""
    name, separator, gauge = (part.strip() for part in text.partition("="))
    gauge = gauge.removeprefix("lightwell_")
    if not separator or not _NAME.fullmatch(name):
        raise ValueError(
            "NAME=GAUGE is accepted, with a NAME of letters, digits, _ and : that begins with no digit, such as "
            "vllm:num_requests_waiting=num_requests_waiting"
        )
    if name.startswith(_TAKEN):
        raise ValueError(
            f"{name} would be one of this server's own; one that begins with neither {' nor '.join(_TAKEN)} is accepted"
        )
    if gauge not in GAUGES:
        raise ValueError(f"{gauge!r} is no gauge that may have another name; accepted are {', '.join(GAUGES)}")
    return name, gauge


def repeated_name(aliases: Sequence[tuple[str, str]]) -> str | None:
    """Return a name that is given more than once, or None."""
    return next((name for name, count in Counter(name for name, _ in aliases).items() if count > 1), None)
