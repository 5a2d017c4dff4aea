"""The Gateway API Inference Extension: a real server meets its Model Server Protocol; the example is consistent."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.deploy.rendered import FOLDER, container, documents, variables
from tests.server.running import RunningServer, running_server, wait_for

pytestmark = pytest.mark.nightly

POOL = FOLDER / "inference-pool"

VLLM = {
    "vllm:num_requests_waiting": "lightwell_num_requests_waiting",
    "vllm:num_requests_running": "lightwell_num_requests_running",
    "vllm:kv_cache_usage_perc": "lightwell_kv_cache_usage_ratio",
    "vllm:cache_config_info": "lightwell_cache_config_info",
}
"""Metric names that an endpoint picker reads by default, and our names of these metrics."""


def load(name: str) -> Any:
    return yaml.safe_load((POOL / name).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """The default model with the variables of the rendered pod, except for its address."""
    ours = {name: value for name, value in variables("pool").items() if name.startswith("LIGHTWELL_")}
    del ours["LIGHTWELL_PORT"]
    ours["LIGHTWELL_HOST"] = "127.0.0.1"
    with running_server(module="tests.server.lightwell_command", **ours) as running:
        running.wait_ready()
        yield running


def scrape(server: RunningServer) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(server.get("/metrics").text)}


def running_now(server: RunningServer) -> dict[str, Metric]:
    """Return the metrics that are reported only while requests run."""
    told = scrape(server)
    return told if told["vllm:num_requests_running"].samples[0].value else {}


def test_the_server_answers_what_the_protocol_and_the_probes_ask_for(server: RunningServer) -> None:
    completion = server.post("/v1/completions", {"prompt": "Once", "max_tokens": 2})
    chat = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2})
    assert (completion.status_code, chat.status_code) == (200, 200)
    for kind in ("startup", "liveness", "readiness"):
        assert server.status(container("pool")[f"{kind}Probe"]["httpGet"]["path"]) == 200


def test_gauges_have_their_values_and_types_under_both_names(server: RunningServer) -> None:
    body = {"prompt": "Once upon a time", "max_tokens": 500, "ignore_eos": True, "n": 8, "stream": True}
    with server.http.stream("POST", f"{server.url}/v1/completions", json=body) as response:
        assert response.status_code == 200
        told = wait_for(lambda: running_now(server), "the request runs")
    for alias, name in VLLM.items():
        assert told[alias].type == told[name].type == "gauge"
        assert [(each.labels, each.value) for each in told[alias].samples] == [
            (each.labels, each.value) for each in told[name].samples
        ]
    assert 0 < told["vllm:kv_cache_usage_perc"].samples[0].value < 1


def test_the_cache_is_told_in_labels_that_are_whole_numbers(server: RunningServer) -> None:
    (sample,) = scrape(server)["vllm:cache_config_info"].samples
    assert sample.value == 1
    assert sample.labels["block_size"] == "32"
    assert int(sample.labels["num_gpu_blocks"]) > 1


def test_the_aliases_of_the_example_are_those_of_a_picker_that_nobody_configured() -> None:
    pairs = [alias.split("=") for alias in load("values.yaml")["settings"]["metric_alias"]]
    assert {alias: f"lightwell_{gauge}" for alias, gauge in pairs} == VLLM


def test_a_picker_that_is_configured_is_told_our_own_names() -> None:
    epp = load("picker-values.yaml")["router"]["epp"]
    config = yaml.safe_load(epp["pluginsCustomConfig"][epp["pluginsConfigFile"]])
    plugins = {plugin["type"]: plugin.get("parameters", {}) for plugin in config["plugins"]}
    (engine,) = plugins["core-metrics-extractor"]["engineConfigs"]
    assert engine["name"] == plugins["core-metrics-extractor"]["defaultEngine"]
    specs = {name: value for name, value in engine.items() if name.endswith("Spec") and value}
    assert set(specs.values()) == set(VLLM.values())
    for profile in config["schedulingProfiles"]:
        assert {each["pluginRef"] for each in profile["plugins"]} <= plugins.keys()


def test_the_pool_selects_the_pods_and_the_route_leads_to_it() -> None:
    pool, route, gateway = load("inferencepool.yaml"), load("httproute.yaml"), load("gateway.yaml")
    made = documents("pool")
    pods = made["Deployment"]["spec"]["template"]["metadata"]["labels"]
    port = container("pool")["ports"][0]["containerPort"]
    servers = load("picker-values.yaml")["router"]["modelServers"]
    for selector, ports in (
        (pool["spec"]["selector"]["matchLabels"], pool["spec"]["targetPorts"]),
        (servers["matchLabels"], servers["targetPorts"]),
    ):
        assert selector.items() <= pods.items()
        assert ports == [{"number": port}]
    assert [parent["name"] for parent in route["spec"]["parentRefs"]] == [gateway["metadata"]["name"]]
    to_pool, to_service = (rule["backendRefs"][0] for rule in route["spec"]["rules"])
    assert (to_pool["kind"], to_pool["name"]) == ("InferencePool", pool["metadata"]["name"])
    assert to_pool["group"] == pool["apiVersion"].partition("/")[0]
    assert (to_service["kind"], to_service["name"]) == ("Service", made["Service"]["metadata"]["name"])
    assert to_service["port"] == made["Service"]["spec"]["ports"][0]["port"]


def test_the_pool_is_one_of_the_api_that_is_generally_available() -> None:
    """Check the fields of inference.networking.k8s.io/v1; no package contains its schema."""
    pool = load("inferencepool.yaml")
    assert (pool["apiVersion"], pool["kind"]) == ("inference.networking.k8s.io/v1", "InferencePool")
    required, optional = {"selector", "targetPorts", "endpointPickerRef"}, {"appProtocol"}
    assert required <= pool["spec"].keys() <= required | optional
    assert pool["spec"]["selector"].keys() == {"matchLabels"}
    picker = pool["spec"]["endpointPickerRef"]
    assert {"name"} <= picker.keys() <= {"name", "group", "kind", "port", "failureMode"}
    assert isinstance(picker["port"]["number"], int)
    assert picker.get("failureMode", "FailClose") in ("FailOpen", "FailClose")
