"""Prometheus and Grafana as deploy/ sets them up: a real Prometheus scrapes a real server that had a busy minute.

promtool tests the alerts. Grafana itself is not run: the queries of its dashboard are sent to Prometheus instead.
"""

import itertools
import json
import math
import os
import re
import shutil
import signal
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from deploy.grafana import build
from lightwell.server.config.auth.keys import hash_of
from tests.readme import metrics_table
from tests.server.running import wait_for
from tests.support.processes import LOOPBACK, Server, free_port, running, serve, worker_pid

ROOT = Path(__file__).resolve().parent.parent.parent
PROMETHEUS = ROOT / "deploy" / "prometheus"
RULE_FILES = sorted((PROMETHEUS / "rules").glob("*.yml"))
RULES = [rule for file in RULE_FILES for group in yaml.safe_load(file.read_text())["groups"] for rule in group["rules"]]
ALERTS = {rule["alert"] for rule in RULES if "alert" in rule}
RUNBOOK = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
SELECTOR = re.compile(r"(?<![\w:\"])(?:lightwell_\w+|up\b|process_\w+)(?:\{[^}]*\})?")
NOT_SHOWN = {"lightwell_build_info", "lightwell_cache_config_info"}
"""Metrics that only programs read."""
KEY, SMALL_KEY = "k" * 40, "s" * 40


def program(name: str) -> str:
    """Return the program. Skips with the installation command if the tools of `make test-nightly` are missing."""
    found = shutil.which(name)
    if found is None and not os.environ.get("TEST_TOOLS"):
        pytest.skip(f"{name} is missing: Debian's package prometheus has it")
    assert found, f"{name} is missing: Debian's package prometheus has it"
    return found


@dataclass(frozen=True)
class Monitored:
    """A server, and the Prometheus that has scraped it from the start."""

    server: Server
    prometheus: Server

    def ask(self, path: str, **arguments: str) -> Any:
        query = urllib.parse.urlencode({name.replace("match", "match[]"): value for name, value in arguments.items()})
        with urllib.request.urlopen(f"{self.prometheus.url}/api/v1/{path}?{query}", timeout=10) as answer:
            return json.load(answer)["data"]

    def values(self, expr: str) -> list[float]:
        """Return the current values of the expression, without NaN."""
        result = self.ask("query", query=expr)["result"]
        return [value for value in (float(each["value"][1]) for each in result) if not math.isnan(value)]

    @property
    def instance(self) -> str:
        return self.server.url.removeprefix("http://")


@pytest.fixture(scope="module")
def monitored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Monitored]:
    found, folder = program("prometheus"), tmp_path_factory.mktemp("monitored")
    keys = folder / "keys.toml"
    keys.write_text(
        f'[team]\nhash = "{hash_of(KEY)}"\n\n[small]\nhash = "{hash_of(SMALL_KEY)}"\ntokens_per_minute = 1\n'
    )
    with serve(["--served-model-name", "fables", "--api-key-file", str(keys)]) as server:
        port = free_port()
        command = [found, f"--config.file={configuration(folder, server)}", f"--storage.tsdb.path={folder / 'data'}"]
        command += [f"--web.listen-address={LOOPBACK}:{port}", "--log.level=warn"]
        with running(command, port, "/-/ready", 60) as prometheus:
            monitored = Monitored(server, prometheus)
            wait_for(lambda: monitored.values("up") == [1.0], "a scrape", pause=0.1)
            keep_busy(server)
            wait_for(lambda: is_seen(monitored), "Prometheus has seen it all", pause=0.1)
            yield monitored


def configuration(folder: Path, server: Server) -> Path:
    """Write deploy/'s own configuration, with our server's address and short intervals."""
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(PROMETHEUS / pattern) for pattern in config["rule_files"]]
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [f"{server.host}:{server.port}"]
    path = folder / "prometheus.yml"
    path.write_text(yaml.safe_dump(config))
    return path


def keep_busy(server: Server) -> None:
    """Send one request of each kind: text, a stream, inspection, requests that fail; and kill a worker."""
    with httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {KEY}"}, timeout=60) as client:

        def status(path: str, body: dict[str, Any], key: str = KEY) -> int:
            return client.post(path, json=body, headers={"Authorization": f"Bearer {key}"}).status_code

        text = {"prompt": "Once upon a time there was a", "max_tokens": 16}
        for _ in range(2):
            assert status("/v1/completions", text) == 200
            assert status("/v1/completions", {**text, "stream": True, "attention": {"layers": 1}}) == 200
            assert status("/v1/attention", {"input": "The old king"}) == 200
            assert status("/v1/embeddings", {"input": "The old king"}) == 200
        assert status("/v1/completions", {**text, "temperature": -1}) == 400
        assert status("/v1/completions", text, SMALL_KEY) == 200
        assert status("/v1/completions", text, SMALL_KEY) == 429
        worker = worker_pid(server.pid)
        assert worker is not None
        os.kill(worker, signal.SIGKILL)
        wait_for(lambda: status("/v1/completions", text) == 503, "the worker is missed")
        wait_for(lambda: status("/v1/completions", text) == 200, "another worker is ready", 60, pause=0.2)
        assert status("/v1/attention", {"input": "The old king"}) == 200


def is_seen(monitored: Monitored) -> bool:
    """Return whether the last thing that happened was scraped twice, and every rule evaluated since."""
    looks = 'lightwell_http_requests_total{route="/v1/attention", status="200"}'
    if monitored.values(f"min_over_time({looks}[2s])") != [3.0]:
        return False
    seen = datetime.now(UTC)
    wait_for(lambda: oldest_evaluation(monitored) > seen, "the rules are evaluated", pause=0.1)
    return True


def rules_of(monitored: Monitored) -> list[Any]:
    return [rule for group in monitored.ask("rules")["groups"] for rule in group["rules"]]


def oldest_evaluation(monitored: Monitored) -> datetime:
    return min(datetime.fromisoformat(rule["lastEvaluation"]) for rule in rules_of(monitored))


def dashboard_queries() -> list[tuple[str, str]]:
    """Return every query of the file that Grafana reads, with its panel's title."""
    panels = json.loads(build.DASHBOARD.read_text(encoding="utf-8"))["panels"]
    return [(panel["title"], target["expr"]) for panel in panels for target in panel.get("targets", ())]


@pytest.mark.nightly
def test_every_query_of_the_dashboard_returns_numbers(monitored: Monitored) -> None:
    chosen = {"$job": "lightwell", "$instance": monitored.instance, "$__rate_interval": "1m"}
    empty = []
    for title, expr in dashboard_queries():
        for name, value in chosen.items():
            expr = expr.replace(name, value)
        assert "$" not in expr
        if not monitored.values(expr):
            empty.append((title, expr))
    assert not empty


@pytest.mark.nightly
def test_the_choices_above_the_dashboard_are_the_servers_that_are_scraped(monitored: Monitored) -> None:
    choices = {each["name"]: each["query"] for each in build.dashboard()["templating"]["list"]}
    for name, expected in {"job": "lightwell", "instance": monitored.instance}.items():
        asked = re.fullmatch(r"label_values\((.*), (\w+)\)", choices[name]["query"])
        assert asked
        series = asked[1].replace("$job", "lightwell")
        assert monitored.ask(f"label/{asked[2]}/values", match=series) == [expected]


@pytest.mark.nightly
def test_every_rule_is_evaluated_and_healthy_and_every_recorded_series_has_a_number(monitored: Monitored) -> None:
    rules = rules_of(monitored)
    assert len(rules) == len(RULES)
    assert not [(rule["name"], rule.get("lastError")) for rule in rules if rule["health"] != "ok"]
    recorded = {rule["record"] for rule in RULES if "record" in rule}
    assert len(recorded) == 11
    assert not [name for name in sorted(recorded) if not monitored.values(name)]


@pytest.mark.nightly
def test_every_series_that_a_rule_names_exists(monitored: Monitored) -> None:
    """Check that no rule has a wrong name or label: such a rule is healthy, and never fires."""
    selectors = {selector for rule in RULES for selector in SELECTOR.findall(rule["expr"])}
    assert len(selectors) > 20
    assert not [selector for selector in sorted(selectors) if not monitored.values(selector)]


@pytest.mark.nightly
def test_a_worker_that_was_killed_fires_its_alert_and_no_other(monitored: Monitored) -> None:
    firing = monitored.ask("query", query='ALERTS{alertstate="firing"}')["result"]
    assert [alert["metric"]["alertname"] for alert in firing] == ["LightwellWorkerRestarted"]
    assert firing[0]["metric"]["instance"] == monitored.instance


def test_the_dashboard_shows_every_metric_of_the_server() -> None:
    served = set(re.findall(r"^\| `(lightwell_\w+)", metrics_table(), re.MULTILINE))
    shown = {name for _, expr in dashboard_queries() for name in re.findall(r"(?<!:)\blightwell_\w+", expr)}
    shown |= {re.sub("_(bucket|sum|count)$", "", name) for name in shown}
    assert served - shown == NOT_SHOWN


@pytest.mark.parametrize("file", ["alerts.yml", "objectives.yml"])
def test_the_alerts_fire_when_they_should_and_only_then(file: str) -> None:
    done = subprocess.run(
        [program("promtool"), "test", "rules", str(PROMETHEUS / "tests" / file)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_finds_nothing_wrong_with_configuration_and_rules() -> None:
    config = PROMETHEUS / "prometheus.yml"
    done = subprocess.run([program("promtool"), "check", "config", config], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert done.stdout.count("rules found") == len(RULE_FILES)


def test_each_alert_is_tried_where_it_fires_and_where_it_does_not() -> None:
    files = [yaml.safe_load(file.read_text()) for file in (PROMETHEUS / "tests").glob("*.yml")]
    tests = [test for file in files for test in file["tests"]]
    cases = [case for test in tests for case in test["alert_rule_test"]]
    assert {case["alertname"] for case in cases if case.get("exp_alerts")} == ALERTS
    assert {case["alertname"] for case in cases if not case.get("exp_alerts")} == ALERTS


def test_each_alert_has_its_section_in_the_runbook_and_names_it() -> None:
    assert set(re.findall(r"^### (\w+)$", RUNBOOK, re.MULTILINE)) == ALERTS
    for rule in RULES:
        if "alert" in rule:
            assert rule["annotations"]["runbook"] == f"docs/monitoring.md#{rule['alert'].lower()}"
            assert rule["annotations"]["summary"]
            assert rule["labels"]["severity"] in ("critical", "warning")


def test_the_panels_that_the_runbook_names_exist() -> None:
    named = {" ".join(title.split()) for title in re.findall(r'"([A-Z][^"]+)"', RUNBOOK)}
    assert len(named) > 5
    assert named <= {panel["title"] for panel in build.dashboard()["panels"]}


def test_the_dashboard_is_what_its_source_makes() -> None:
    assert build.DASHBOARD.read_text(encoding="utf-8") == build.text(), "run python -m deploy.grafana.build"


def test_panels_lie_side_by_side_and_say_what_to_look_for() -> None:
    panels = build.dashboard()["panels"]
    assert [panel["title"] for panel in panels if panel["type"] == "row"] == list(build.ROWS)
    assert len({panel["id"] for panel in panels}) == len(panels)
    for one, other in itertools.combinations([panel["gridPos"] for panel in panels], 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or above
    for panel in panels:
        if panel["type"] != "row":
            assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
            assert panel["description"].endswith((".", ").")), panel["title"]
            assert panel["fieldConfig"]["defaults"]["unit"]
