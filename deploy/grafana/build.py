"""Build the dashboard: its rows and panels, their queries, and the checks for each panel.

    python -m deploy.grafana.build      writes dashboards/lightwell.json, which Grafana reads

In a query, HERE stands for the jobs and instances chosen above the dashboard, SPAN for the shortest time over which a
rate can be computed. This module contains the metrics' names; `panels` contains Grafana's fields.
"""

import json
from pathlib import Path
from typing import Any

from deploy.grafana.panels import DATA_SOURCE, Panel, laid_out
from deploy.grafana.queries import TOKENS_PER_SECOND, ask, lines
from deploy.grafana.serving_rows import BATCH, LATENCY, NOW, TRAFFIC

DASHBOARD = Path(__file__).parent / "dashboards" / "lightwell.json"


CAPTURES = (
    lines("Captured", "Bps", "Bytes of attention, traces and embeddings.",
          ask("sum by (instance) (rate(lightwell_capture_bytes_total{HERE}[SPAN]))", "{{instance}}"), width=6),
    lines("Captured and not yet sent", "bytes", "Bounded by --max-capture-bytes; stays high when clients read slowly.",
          ask("sum by (instance) (lightwell_inflight_capture_bytes{HERE})", "{{instance}}"), width=6),
    lines("Time spent capturing", "percentunit", "Part of each second that is not available for generation.",
          ask("sum by (instance) (rate(lightwell_capture_seconds_total{HERE}[SPAN]))", "{{instance}}"), width=6),
    lines("Captures refused", "reqps",
          "budget_full (429): too many captures at once. answer_too_large (413): too large.",
          ask("sum by (reason) (rate(lightwell_capture_rejected_total{HERE}[SPAN]))", "{{reason}}"), width=6),
)  # fmt: skip

ERRORS = (
    lines("Failed by reason", "reqps", "Engine requests that ended with an error; see docs/operating.md.",
          ask("sum by (reason) (rate(lightwell_request_failed_total{HERE}[SPAN]))", "{{reason}}"), stacked=True),
    lines("HTTP errors by status", "reqps", "4xx: errors of clients. 5xx: errors of the server (504: time limit).",
          ask(
              'sum by (status) (rate(lightwell_http_requests_total{HERE, NO_PROBES, status=~"[45].."}[SPAN]))',
              "{{status}}",
          ),
          stacked=True),
    lines("Share that fails, and objectives", "percentunit",
          "Bad: 5xx or failed in the engine, at most 0.1 %. Late: first token after 2.5 s, at most 1 %.",
          ask('job:lightwell_bad_requests:ratio_rate5m{job=~"$job"}', "bad, 5 minutes"),
          ask('job:lightwell_bad_requests:ratio_rate1h{job=~"$job"}', "bad, 1 hour"),
          ask('job:lightwell_slow_first_tokens:ratio_rate5m{job=~"$job"}', "late, 5 minutes"),
          ask('job:lightwell_slow_first_tokens:ratio_rate1h{job=~"$job"}', "late, 1 hour")),
    lines("Connections ended by the server", "ops",
          "slow: sent no complete request. stalled: did not read the answer. refused: too many.",
          ask("sum(rate(lightwell_slow_clients_total{HERE}[SPAN]))", "slow"),
          ask("sum(rate(lightwell_stalled_clients_total{HERE}[SPAN]))", "stalled"),
          ask("sum(rate(lightwell_refused_connections_total{HERE}[SPAN]))", "refused"),
          width=12),
    lines("Counters that must stay 0", "short", "Log lines lost, books that contradicted each other, key files that "
              "were no use.",
          ask("sum by (instance) (increase(lightwell_log_lines_dropped_total{HERE}[SPAN]))", "log lines {{instance}}"),
          ask("sum by (instance) (increase(lightwell_integrity_failures_total{HERE}[SPAN]))", "integrity {{instance}}"),
          ask("sum by (instance) (increase(lightwell_key_file_errors_total{HERE}[SPAN]))", "key file {{instance}}"),
          width=12),
)  # fmt: skip

WORKERS = (
    Panel("Workers up", "state-timeline", "short", "Red: the worker starts, has ended or hangs.",
          (ask("lightwell_worker_up{HERE}", "{{instance}} worker {{worker}}"),), limit=1, limit_is_least=True),
    lines("Workers started again", "short", "All requests of the worker ended with 503. The log has the reason of its "
              "end.",
          ask("sum by (instance) (increase(lightwell_worker_restarts_total{HERE}[SPAN]))", "{{instance}}")),
    lines(
        "Requests by worker", "reqps", "Equal, except that prompts with the same prefix go to one worker.",
        ask("sum by (instance, worker) (rate(lightwell_worker_requests_total{HERE}[SPAN]))", "{{instance}} {{worker}}"),
    ),
    lines("Running by worker", "short", "A worker with many more requests than others has the long ones.",
          ask("lightwell_worker_requests_running{HERE}", "{{instance}} {{worker}}")),
    lines("Waiting by worker", "short", "Should be 0 while another worker has free places.",
          ask("lightwell_worker_requests_waiting{HERE}", "{{instance}} {{worker}}")),
    lines("KV cache by worker", "percentunit", "The worker with the fullest cache preempts first.",
          ask("lightwell_worker_kv_cache_usage_ratio{HERE}", "{{instance}} {{worker}}"), top=1, limit=0.9),
    lines("Routed to their prefix", TOKENS_PER_SECOND, "Prompt tokens sent to a worker that has them in its cache.",
          ask("sum by (instance) (rate(lightwell_routed_prefix_tokens_total{HERE}[SPAN]))", "{{instance}}"), width=6),
    lines("Memory of the API process", "bytes", "Without the workers. Steady growth under constant load is a leak.",
          ask("process_resident_memory_bytes{HERE}", "{{instance}}"), width=6),
    lines(
        "CPU of the API process", "percentunit", "1 is one core. If it stays near 1, run more servers, not workers.",
        ask("rate(process_cpu_seconds_total{HERE}[SPAN])", "{{instance}}"), width=6,
    ),
    lines("Open files", "short", "One for each connection, limited by --max-connections.",
          ask("process_open_fds{HERE}", "{{instance}}"), width=6),
)  # fmt: skip

NO_KEYS = "no API keys"
KEYS = (
    lines("Requests by key", "reqps", "Requests of each API key. Empty on a server without keys.",
          ask("sum by (key) (rate(lightwell_key_requests_total{HERE}[SPAN]))", "{{key}}"), width=6, when_empty=NO_KEYS),
    lines("Tokens by key", TOKENS_PER_SECOND, "Prompt and generated tokens, as in tokens_per_minute.",
          ask("sum by (key) (rate(lightwell_key_tokens_total{HERE}[SPAN]))", "{{key}}"), width=6, when_empty=NO_KEYS),
    lines("In flight by key", "short", "Limited by max_requests of the key.",
          ask("sum by (key) (lightwell_key_requests_in_flight{HERE})", "{{key}}"), width=6, when_empty=NO_KEYS),
    lines("Over the limit by key", "reqps", "429 for a single key: raise its limit, or contact its owner.",
          ask("sum by (key, limit) (rate(lightwell_key_refusals_total{HERE}[SPAN]))", "{{key}}: {{limit}}"),
          width=6, when_empty=NO_KEYS),
)  # fmt: skip

ADAPTERS = (
    lines("Requests by adapter", "reqps", "Requests of each LoRA adapter; 0 without adapters.",
          ask("sum by (lora_name) (rate(lightwell_lora_requests_total{HERE}[SPAN])) or vector(0)", "{{lora_name}}"),
          width=12),
    lines("Adapters loaded", "short", "At most --max-loras of a server.",
          ask("sum by (instance) (lightwell_lora_adapter_info{HERE}) or vector(0)", "{{instance}}"), width=12),
)  # fmt: skip

ROWS = {
    "Now": NOW,
    "Traffic": TRAFFIC,
    "Latency by phase": LATENCY,
    "Batch and KV cache": BATCH,
    "Looking inside": CAPTURES,
    "Errors": ERRORS,
    "Workers": WORKERS,
    "API keys": KEYS,
    "LoRA adapters": ADAPTERS,
}


def choice(name: str, query: str) -> dict[str, Any]:
    """Return a list above the dashboard, all of it chosen at first."""
    return {
        "name": name,
        "type": "query",
        "datasource": DATA_SOURCE,
        "definition": query,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def dashboard() -> dict[str, Any]:
    return {
        "uid": "lightwell",
        "title": "Lightwell",
        "description": "One or several Lightwell servers; docs/monitoring.md explains the panels.",
        "tags": ["lightwell"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "browser",
        "templating": {
            "list": [
                {
                    "name": "datasource",
                    "label": "data source",
                    "type": "datasource",
                    "query": "prometheus",
                    "current": {},
                },
                choice("job", "label_values(lightwell_num_requests_running, job)"),
                choice("instance", 'label_values(lightwell_num_requests_running{job=~"$job"}, instance)'),
            ]
        },
        "panels": laid_out(ROWS),
    }


def text() -> str:
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    DASHBOARD.write_text(text(), encoding="utf-8")
