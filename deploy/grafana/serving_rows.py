"""The dashboard's rows about serving: now, traffic, latency and batches."""

from deploy.grafana.panels import Panel
from deploy.grafana.queries import TOKENS_PER_SECOND, ask, lines, mean, number, quantiles, share

NOW = (
    number("Servers that answer", "none", "Servers that Prometheus can reach. If some are missing, see LightwellDown.",
           "sum(up{HERE})", limit=1, limit_is_least=True),
    number("Workers ready", "percentunit", "Share of the workers that accept requests; below 1 while a worker starts.",
           "avg(lightwell_worker_up{HERE})", limit=1, limit_is_least=True),
    number("Requests", "reqps", "HTTP requests, without probes and scrapes.",
           "sum(rate(lightwell_http_requests_total{HERE, NO_PROBES}[SPAN]))"),
    number("Tokens written", TOKENS_PER_SECOND, "Tokens that all servers generate.",
           "sum(rate(lightwell_generation_tokens_total{HERE}[SPAN]))"),
    number("First token, p99", "s", "One request in a hundred waits longer. The objective is 2.5 s.",
           f"{quantiles('time_to_first_token_seconds')[2].expr} >= 0", limit=2.5),
    number("Refused", "percentunit", "Share of the requests that were rejected with 429 because of the load.",
           share(
               "sum(rate(lightwell_requests_refused_total{HERE}[SPAN]))",
               "sum(rate(lightwell_requests_submitted_total{HERE}[SPAN]))"
               " + sum(rate(lightwell_requests_refused_total{HERE}[SPAN]))",
           ),
           limit=0.05),
    number("Failed", "percentunit", "Share of the engine requests that ended with an error.",
           share(
               "sum(rate(lightwell_request_failed_total{HERE}[SPAN]))",
               "sum(rate(lightwell_requests_submitted_total{HERE}[SPAN]))",
           ),
           limit=0.01),
    number("Alerts firing", "none", "Alerts of deploy/prometheus/rules; docs/monitoring.md has the runbook of each.",
           'count(ALERTS{alertname=~"Lightwell.*", alertstate="firing"}) or vector(0)', limit=1),
    Panel("Alerts", "table", "none", "Firing alerts, and pending ones.",
          (ask('ALERTS{alertname=~"Lightwell.*"}'),), 24, 5, when_empty="no alerts"),
)  # fmt: skip

TRAFFIC = (
    lines(
        "Requests by route", "reqps", "Requests by route. If a route disappears, a client has stopped.",
        ask("sum by (route) (rate(lightwell_http_requests_total{HERE, NO_PROBES}[SPAN]))", "{{route}}"), stacked=True,
    ),
    lines(
        "Requests by status", "reqps", "429: rejected (load). 499: the client disconnected. 503: no worker.",
        ask("sum by (status) (rate(lightwell_http_requests_total{HERE, NO_PROBES}[SPAN]))", "{{status}}"), stacked=True,
    ),
    lines("Refused by reason", "reqps", "429, before the request ran. Under load, queue_time_exceeded comes first.",
          ask("sum by (reason) (rate(lightwell_requests_refused_total{HERE}[SPAN]))", "{{reason}}"), stacked=True),
    lines("Tokens", TOKENS_PER_SECOND,
          "Computed tokens: prompts without cached prefixes, including captures.",
          ask("sum(rate(lightwell_prompt_tokens_total{HERE}[SPAN]))", "prompt"),
          ask("sum(rate(lightwell_generation_tokens_total{HERE}[SPAN]))", "generated"),
          ask("sum(rate(lightwell_computed_tokens_total{HERE}[SPAN]))", "computed")),
    lines(
        "Tokens of a request", "short", "Means of ended requests. Longer prompts and answers need more KV cache.",
        ask(mean("request_prompt_tokens"), "prompt"),
        ask(mean("request_generation_tokens"), "generated"),
    ),
    lines("Requests of the engine", "reqps",
          "Each is one prompt with one choice. If more are submitted than end, the queue grows.",
          ask("sum(rate(lightwell_requests_submitted_total{HERE}[SPAN]))", "handed in"),
          ask("sum by (finish_reason) (rate(lightwell_request_success_total{HERE}[SPAN]))", "{{finish_reason}}"),
          ask("sum(rate(lightwell_request_failed_total{HERE}[SPAN]))", "failed")),
)  # fmt: skip

LATENCY = (
    lines("Time to first token", "s", "Time in the queue and prefill. The objective is 2.5 s for 99 % of the requests.",
          *quantiles("time_to_first_token_seconds"), limit=2.5),
    lines("Time in the queue", "s", "Grows first when the batch is full.",
          *quantiles("request_queue_time_seconds")),
    lines("Prefill", "s", "From the first step to the first token. Grows with long prompts and with many streams.",
          *quantiles("request_prefill_time_seconds")),
    lines("Between two tokens", "s", "Time between the tokens of a stream. Grows with the batch and with long prompts.",
          *quantiles("inter_token_latency_seconds")),
    lines("Decode", "s", "From the first token to the last; mostly the number of generated tokens.",
          *quantiles("request_decode_time_seconds")),
    lines("End to end", "s", "From arrival to the end, also of requests that only capture.",
          *quantiles("e2e_request_latency_seconds")),
    lines("End to end by route", "s", "The 90th percentile. An objective for a route can use these buckets.",
          ask(
              "histogram_quantile(0.9, sum by (le, route) "
              "(rate(lightwell_e2e_request_latency_seconds_bucket{HERE}[SPAN])))",
              "{{route}}",
          ),
          width=24),
    Panel(
        "Time to first token, all of it", "heatmap", "short",
        "Each cell is the number of requests with this time. Two bands are two kinds of requests.",
        (ask("sum by (le) (increase(lightwell_time_to_first_token_seconds_bucket{HERE}[SPAN]))", "{{le}}", "heatmap"),),
        12, 9,
    ),
    lines("Where the time goes", "s",
          "Phases of the mean request. Queue: add capacity. Prefill: see the prefix cache. Decode: see the batch.",
          ask(mean("request_queue_time_seconds"), "queue"),
          ask(mean("request_prefill_time_seconds"), "prefill"),
          ask(mean("request_decode_time_seconds"), "decode"),
          width=12, height=9, stacked=True),
)  # fmt: skip

BATCH = (
    lines(
        "Running and waiting", "short", "If requests wait while fewer than --max-num-seqs run, the cache is full.",
        ask("sum by (instance) (lightwell_num_requests_running{HERE})", "running {{instance}}"),
        ask("sum by (instance) (lightwell_num_requests_waiting{HERE})", "waiting {{instance}}"),
    ),
    lines("KV cache in use", "percentunit", "If it is near 1 and requests are preempted, the cache is too small.",
          ask("max by (instance) (lightwell_kv_cache_usage_ratio{HERE})", "{{instance}}"), top=1, limit=0.9),
    lines("Memory of the KV cache", "bytes", "The part that requests have used. On a CPU, the rest takes no memory.",
          ask("sum by (instance) (lightwell_kv_cache_committed_bytes{HERE})", "{{instance}}")),
    lines("Prompt tokens found in the prefix cache", "percentunit",
          "Falls if clients change the beginnings of their prompts.",
          ask(
              share(
                  "sum by (instance) (rate(lightwell_prefix_cache_hits_total{HERE}[SPAN]))",
                  "sum by (instance) (rate(lightwell_prefix_cache_queries_total{HERE}[SPAN]))",
              ),
              "{{instance}}",
          ),
          top=1),
    lines("Tokens of a step", "short", "The size of the batch. If it is small while many wait, see the KV cache.",
          *quantiles("iteration_tokens"), ask(mean("iteration_tokens"), "mean")),
    lines("Steps", "ops", "Forward passes. A pass is abandoned if most of its requests are cancelled or late.",
          ask("sum by (instance) (rate(lightwell_engine_steps_total{HERE}[SPAN]))", "{{instance}}"),
          ask("sum(rate(lightwell_steps_abandoned_total{HERE}[SPAN]))", "given up")),
    lines("Preemptions", "ops", "Each preemption computes the tokens of a request again. Should be 0.",
          ask("sum by (instance) (rate(lightwell_num_preemptions_total{HERE}[SPAN]))", "{{instance}}")),
    lines("Grammars", "reqps", "Schemas, patterns and tools of answers. Refused: invalid or unsupported.",
          ask("sum(rate(lightwell_grammars_compiled_total{HERE}[SPAN]))", "compiled"),
          ask("sum(rate(lightwell_grammars_cached_total{HERE}[SPAN]))", "known already"),
          ask("sum(rate(lightwell_grammars_refused_total{HERE}[SPAN]))", "refused"),
          width=12),
    lines(
        "Work of grammars and drafts", "percentunit",
        "Share of tokens that a grammar forced or that were accepted drafts, which take no step of their own; rejected "
        "drafts in the same unit; and the share of a core that compiles grammars.",
        ask(
            share(
                "sum(rate(lightwell_forced_tokens_total{HERE}[SPAN]))",
                "sum(rate(lightwell_generation_tokens_total{HERE}[SPAN]))",
            ),
            "forced tokens",
        ),
        *[
            ask(
                share(
                    f'sum(rate(lightwell_speculation_tokens_total{{HERE, result="{result}"}}[SPAN]))',
                    "sum(rate(lightwell_generation_tokens_total{HERE}[SPAN]))",
                ),
                f"{result} drafts",
            )
            for result in ("accepted", "rejected")
        ],
        ask("sum(rate(lightwell_grammar_compile_seconds_total{HERE}[SPAN]))", "compiling"),
        width=12,
    ),
)  # fmt: skip
