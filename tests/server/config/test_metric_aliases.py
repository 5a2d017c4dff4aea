"""Gauges under other names, for a scheduler that reads the gauges of another server."""

import argparse

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lightwell.server.config.command_line import add_arguments, from_arguments
from lightwell.server.config.metric_aliases import METRICS
from lightwell.server.config.settings import Settings, SettingsError
from lightwell.server.engine.messages.outputs import EngineInfo
from lightwell.server.observability.metrics import Metrics, of_caches


def read(*argv: str, **environ: str) -> Settings:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return from_arguments(parser.parse_args(argv), environ)


def engine(num_blocks: int) -> EngineInfo:
    return EngineInfo(max_model_len=512, num_blocks=num_blocks, block_size=32, dtype="float32", device="cpu")


def shown(metrics: Metrics) -> dict[str, list[tuple[dict[str, str], float]]]:
    families = text_string_to_metric_families(metrics.render().decode())
    return {family.name: [(each.labels, each.value) for each in family.samples] for family in families}


def test_flags_are_repeated_and_the_variable_has_commas() -> None:
    expected = (("vllm:num_requests_waiting", "num_requests_waiting"), ("busy", "num_requests_running"))
    flags = [f"{name}={gauge}" for name, gauge in expected]
    assert read("--metric-alias", flags[0], "--metric-alias", flags[1]).metric_alias == expected
    assert read(LIGHTWELL_METRIC_ALIAS=", ".join(flags)).metric_alias == expected
    assert read("--metric-alias", "busy=lightwell_num_requests_running").metric_alias == expected[1:]


@pytest.mark.parametrize(
    ("alias", "message"),
    [
        ("waiting", "NAME=METRIC is accepted"),
        ("=num_requests_waiting", "NAME=METRIC is accepted"),
        ("1st=num_requests_waiting", "does not begin with a digit"),
        ("num-waiting=num_requests_waiting", "letters, digits, _ and :"),
        ("waiting=num_waiting", "'num_waiting' cannot have an alias; accepted are num_requests_running, num_req"),
        ("waiting=http_requests_total", "cannot have an alias"),
        ("read=prompt_tokens_total", "is a counter, so its name must end in _total; read_total is accepted"),
        ("lightwell_worker_up=num_requests_running", "is reserved for the server's metrics"),
        ("process_open_fds=num_requests_running", "is reserved for the server's metrics"),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_would(alias: str, message: str) -> None:
    with pytest.raises(SettingsError, match=rf"--metric-alias: \['{alias}'\] is not usable; .*{message}"):
        read("--metric-alias", alias)


def test_a_name_stands_for_one_gauge() -> None:
    with pytest.raises(SettingsError, match="busy is given twice"):
        read("--metric-alias", "busy=num_requests_running", "--metric-alias", "busy=num_requests_waiting")


def test_the_cache_of_all_workers_is_told_without_the_block_that_holds_nothing() -> None:
    metrics = Metrics()
    workers = [engine(101), engine(61)]
    metrics.watch(lambda: of_caches(workers))
    assert shown(metrics)["lightwell_cache_config_info"] == [({"block_size": "32", "num_gpu_blocks": "160"}, 1.0)]
    workers.clear()
    assert shown(metrics)["lightwell_cache_config_info"] == []


def test_an_alias_has_the_labels_and_values_of_its_gauge_and_a_gauge_may_have_several() -> None:
    metrics = Metrics([("a", "cache_config_info"), ("b:c", "cache_config_info")])
    metrics.watch(lambda: of_caches([engine(11)]))
    told = shown(metrics)
    assert told["a"] == told["b:c"] == told["lightwell_cache_config_info"] != []


def test_counters_and_histograms_may_have_another_name_with_the_label_that_vllm_gives_its_own() -> None:
    names = {"vllm:request_success_total": "request_success_total", "vllm:e2e": "e2e_request_latency_seconds"}
    metrics = Metrics(list(names.items()))
    metrics.of_model("toy").observe_end("stop", 1.0, None, 3, 20)
    told = shown(metrics)
    for alias, name in names.items():
        copy = told[alias.removesuffix("_total")]
        assert copy == told[f"lightwell_{name.removesuffix('_total')}"]
        assert all(labels["model_name"] == "toy" for labels, _ in copy)
    lines = metrics.render().decode().splitlines()
    assert 'vllm:request_success_total{finish_reason="stop",model_name="toy"} 1.0' in lines
    assert 'vllm:e2e_count{model_name="toy",route="unmatched"} 1.0' in lines
    assert 'vllm:e2e_bucket{le="1.0",model_name="toy",route="unmatched"} 1.0' in lines


def test_there_is_a_metric_for_each_name_that_may_have_another() -> None:
    from tests.readme import metrics_table

    known = {line.split("`")[1].split("{")[0] for line in metrics_table().splitlines() if "`" in line}
    assert {f"lightwell_{name}" for name in METRICS} <= known
