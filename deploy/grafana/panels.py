"""Grafana's panels as JSON, made from title, unit, description and queries.

The fields follow schema 39 (Grafana 11 and later). Independent of the metrics.
"""

from dataclasses import dataclass
from typing import Any

WIDTH = 24
"""Number of columns of a dashboard."""
DATA_SOURCE = {"type": "prometheus", "uid": "${datasource}"}

Json = dict[str, Any]


@dataclass(frozen=True)
class Query:
    """One PromQL expression and the legend of its lines: `{{label}}` is a label's value."""

    expr: str
    legend: str = ""
    format: str = "time_series"


@dataclass(frozen=True)
class Panel:
    """The content of one panel. Its width is in columns, its height in Grafana's rows of 30 pixels."""

    title: str
    kind: str
    """Grafana's type of panel: timeseries, stat, table, heatmap, state-timeline."""
    unit: str
    description: str
    """The checks for the viewer of the panel."""
    queries: tuple[Query, ...]
    width: int = 8
    height: int = 8
    stacked: bool = False
    top: float | None = None
    """The end of the axis, if there is one: 1 for shares."""
    limit: float | None = None
    """The value from which on the panel is red."""
    limit_is_least: bool = False
    """Whether the panel is red below the limit instead."""
    when_empty: str = "none"


def laid_out(rows: dict[str, tuple[Panel, ...]]) -> list[Json]:
    """Return all panels of all rows with their positions, a row's title above its panels, left to right and then
    down.
    """
    panels: list[Json] = []
    y = 0
    for title, row in rows.items():
        place = {"h": 1, "w": WIDTH, "x": 0, "y": y}
        panels.append({"id": len(panels) + 1, "type": "row", "title": title, "collapsed": False, "gridPos": place})
        panels[-1]["panels"] = []
        x, y = 0, y + 1
        height = 0
        for panel in row:
            if x + panel.width > WIDTH:
                x, y = 0, y + height
                height = 0
            place = {"h": panel.height, "w": panel.width, "x": x, "y": y}
            panels.append({"id": len(panels) + 1, "gridPos": place, **panel_json(panel)})
            x, height = x + panel.width, max(height, panel.height)
        y += height
    return panels


def panel_json(panel: Panel) -> Json:
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATA_SOURCE,
        "targets": [target_json(query, chr(ord("A") + i), panel) for i, query in enumerate(panel.queries)],
        "fieldConfig": {"defaults": defaults_json(panel), "overrides": []},
        "options": OPTIONS[panel.kind],
    } | ({"transformations": TABLE_COLUMNS} if panel.kind == "table" else {})


def target_json(query: Query, letter: str, panel: Panel) -> Json:
    instant = panel.kind in ("stat", "table")
    return {
        "refId": letter,
        "datasource": DATA_SOURCE,
        "editorMode": "code",
        "expr": query.expr,
        "legendFormat": query.legend or "__auto",
        "format": "table" if panel.kind == "table" else query.format,
        "instant": instant,
        "range": not instant,
    }


def defaults_json(panel: Panel) -> Json:
    """Return how values are written and coloured."""
    defaults: Json = {"unit": panel.unit, "noValue": panel.when_empty, "color": {"mode": "palette-classic"}}
    if panel.kind != "state-timeline":
        defaults["min"] = 0
    if panel.top is not None:
        defaults["max"] = panel.top
    if panel.kind == "timeseries":
        defaults["custom"] = {
            "lineWidth": 1,
            "fillOpacity": 30 if panel.stacked else 5,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
            "thresholdsStyle": {"mode": "off" if panel.limit is None else "line"},
        }
    if panel.kind in ("stat", "state-timeline") or panel.limit is not None:
        colors = ("red", "green") if panel.limit_is_least else ("green", "red")
        steps: list[Json] = [{"color": colors[0], "value": None}]
        if panel.limit is not None:
            steps.append({"color": colors[1], "value": panel.limit})
        else:
            steps = [{"color": "text", "value": None}]
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    if panel.kind in ("stat", "state-timeline"):
        defaults["color"] = {"mode": "thresholds"}
    return defaults


OPTIONS: dict[str, Json] = {
    "timeseries": {
        "legend": {"displayMode": "table", "placement": "bottom", "calcs": ["mean", "max", "lastNotNull"]},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "value",
        "graphMode": "none",
        "textMode": "auto",
    },
    "table": {"showHeader": True, "cellHeight": "sm", "footer": {"show": False}},
    "heatmap": {
        "calculate": False,
        "yAxis": {"unit": "s"},
        "rowsFrame": {"layout": "auto"},
        "color": {"mode": "scheme", "scheme": "Blues", "steps": 64, "reverse": False},
        "cellGap": 1,
        "tooltip": {"mode": "single", "yHistogram": False},
        "legend": {"show": True},
    },
    "state-timeline": {
        "showValue": "never",
        "mergeValues": True,
        "rowHeight": 0.8,
        "legend": {"displayMode": "list", "placement": "bottom"},
    },
}
TABLE_COLUMNS = [
    {
        "id": "organize",
        "options": {
            "excludeByName": {"Time": True, "Value": True, "__name__": True},
            "indexByName": {"alertstate": 0, "severity": 1, "alertname": 2, "instance": 3},
            "renameByName": {},
        },
    }
]
"""The columns of a table: only the labels, which say everything, since an alert's value is always 1."""
