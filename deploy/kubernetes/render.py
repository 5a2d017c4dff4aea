"""Render the chart with Helm's own engine (from helm-python-sdk), and write plain/ from it.

`python -m deploy.kubernetes.render` writes plain/ and the names of settings in the schema. With `--values FILE` it
prints instead the manifests of each map in a JSON list of values. It needs no cluster.
"""

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

import helm_python

FOLDER = Path(__file__).resolve().parent
CHART = FOLDER / "chart" / "lightwell"
SCHEMA = CHART / "values.schema.json"
PLAIN = FOLDER / "plain"
NAME = "lightwell"

COMPONENTS: dict[str, dict[str, Any]] = {
    "hpa": {"autoscaling": {"kind": "hpa"}},
    "keda": {"autoscaling": {"kind": "keda"}},
    "monitoring": {"serviceMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}},
}
"""Parts that a cluster may not have the means for: Kustomize components, by the values that enable them."""

BANNER = "# Rendered from deploy/kubernetes/chart by `python -m deploy.kubernetes.render`: change the chart instead.\n"


def render(values: dict[str, Any], namespace: str = "default") -> dict[str, str]:
    """Return the text by the template's file name, of those templates that make anything.

    Raises helm_python.HelmError for values that the chart refuses.
    """
    with helm_python.Chart.load(CHART) as chart:
        chart.validate_schema(values)
        rendered = chart.render(values, name=NAME, namespace=namespace)
    return {Path(path).name: text.strip() + "\n" for path, text in rendered.items() if text.strip()}


def plain_files() -> dict[str, str]:
    """Return the files of plain/, by path in it, except the files of Kustomize, which are written by hand."""
    base = {name: text for name, text in render({}).items() if name.endswith(".yaml")}
    files = dict(base)
    for component, values in COMPONENTS.items():
        added = {name: text for name, text in render(values).items() if name not in base and name.endswith(".yaml")}
        files.update({f"components/{component}/{name}": text for name, text in added.items()})
    return {name: BANNER + text for name, text in files.items()}


def schema() -> str:
    """Return the values' schema, with the server's settings as `settings`."""
    from lightwell.server.config.settings import setting_names

    names = ",\n".join(f'          "{name}"' for name in sorted(setting_names()))
    text = SCHEMA.read_text(encoding="utf-8")
    return re.sub(r'("propertyNames": \{\n        "enum": \[)[^]]*\]', rf"\1\n{names}\n        ]", text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--values", metavar="FILE", help="JSON list of maps of values; - is standard input")
    arguments = parser.parse_args()
    if arguments.values is not None:
        text = sys.stdin.read() if arguments.values == "-" else Path(arguments.values).read_text(encoding="utf-8")
        print(json.dumps([attempt(values) for values in json.loads(text)]))
        return 0
    SCHEMA.write_text(schema(), encoding="utf-8")
    for name, text in plain_files().items():
        path = PLAIN / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


def attempt(values: dict[str, Any]) -> dict[str, Any]:
    """Return {"files": ...} of the rendered files, or {"error": ...} when the chart refuses the values."""
    try:
        return {"files": render(values)}
    except helm_python.HelmError as error:
        return {"error": str(error)}


if __name__ == "__main__":
    sys.exit(main())
