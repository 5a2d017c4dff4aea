"""Queries to Prometheus, and panels of them, in few words."""

from typing import Any

from deploy.grafana.panels import Panel, Query

HERE = 'job=~"$job", instance=~"$instance"'

SPAN = "$__rate_interval"

NO_PROBES = 'route!~"/health.*|/metrics"'

TOKENS_PER_SECOND = "suffix:tokens/s"


def ask(expr: str, legend: str = "", format: str = "time_series") -> Query:
    return Query(expr.replace("HERE", HERE).replace("SPAN", SPAN).replace("NO_PROBES", NO_PROBES), legend, format)


def quantiles(histogram: str) -> tuple[Query, ...]:
    """Return the queries of p50, p90 and p99 over the chosen servers together."""
    buckets = f"sum by (le) (rate(lightwell_{histogram}_bucket{{HERE}}[SPAN]))"
    return tuple(
        ask(f"histogram_quantile({quantile}, {buckets})", f"p{quantile * 100:.0f}") for quantile in (0.5, 0.9, 0.99)
    )


def mean(histogram: str) -> str:
    return share(
        f"sum(rate(lightwell_{histogram}_sum{{HERE}}[SPAN]))", f"sum(rate(lightwell_{histogram}_count{{HERE}}[SPAN]))"
    )


def share(part: str, whole: str) -> str:
    """Return the query of a share. Without a whole it gives nothing, not NaN: an idle server refuses no share."""
    return f"{part} / ({whole} > 0)"


def number(title: str, unit: str, description: str, expr: str, width: int = 3, **options: Any) -> Panel:
    return Panel(title, "stat", unit, description, (ask(expr),), width, 4, **options)


def lines(title: str, unit: str, description: str, *queries: Query, **options: Any) -> Panel:
    return Panel(title, "timeseries", unit, description, queries, **options)
