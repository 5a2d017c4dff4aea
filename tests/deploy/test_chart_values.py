"""The values of the chart: their effect, and the refused ones."""

from typing import Any

import pytest
import yaml

pytest.importorskip("helm_python", reason="Helm's engine is not installed (the extra nightly)")

from deploy.kubernetes.render import SCHEMA, schema
from tests.deploy.rendered import FOLDER, Document, container, documents, pod, render, variables

pytestmark = pytest.mark.nightly


def test_the_usual_values_of_charts_are_taken() -> None:
    own = container("on")
    assert own["image"] == "example.com/lightwell@sha256:" + "0a" * 32
    assert own["args"] == ["--log-format", "json"]
    assert own["envFrom"] == [{"secretRef": {"name": "more"}}]
    assert {"name": "certificates", "mountPath": "/certificates", "readOnly": True} in own["volumeMounts"]
    assert {"name": "certificates", "configMap": {"name": "certificates"}} in pod("on")["volumes"]
    assert [each["name"] for each in pod("on")["initContainers"]] == ["wait"]
    made = documents("on")
    assert {document["metadata"]["name"] for document in made.values()} == {"lightwell-own", "lightwell-own-cache"}
    ingress = made["Ingress"]["spec"]
    assert (ingress["ingressClassName"], ingress["tls"][0]["secretName"]) == ("nginx", "tls")
    (rule,) = ingress["rules"]
    (path,) = rule["http"]["paths"]
    (port,) = made["Service"]["spec"]["ports"]
    assert (rule["host"], path["pathType"]) == ("lightwell.example", "Prefix")
    assert path["backend"]["service"] == {"name": made["Service"]["metadata"]["name"], "port": {"name": port["name"]}}
    assert "Ingress" not in documents("default")


@pytest.mark.parametrize(
    ("which", "threads"), [("default", "2"), ("openshift", "1"), ("on", "7"), ("gpu", "1"), ("tensor parallel", "2")]
)
def test_a_worker_has_as_many_threads_as_its_pod_has_cpus(which: str, threads: str) -> None:
    assert variables(which)["LIGHTWELL_THREADS"] == threads


def test_values_that_make_no_sense_are_refused() -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"replica": 3}, "additional properties 'replica' not allowed"),
        ({"gpu": {"count": "two"}}, "at '/gpu/count': got string, want integer"),
        ({"autoscaling": {"kind": "vpa"}}, "at '/autoscaling/kind'"),
        ({"settings": {"max_num_seqz": 1}}, "value must be one of 'activations'"),
        ({"settings": {"--max-num-seqs": 1}}, "value must be one of 'activations'"),
        ({"image": {"digest": "latest"}}, "at '/image/digest'"),
        ({"extraVolumeMounts": [{"name": "x"}]}, "missing property 'mountPath'"),
        ({"settings": {"port": 80}}, "settings.port is set by other values of the chart"),
        ({"settings": {"api_key": "secret"}}, "use apiKeys.secret"),
        ({"apiKeys": {"secret": "a", "configMap": "b"}}, "give one of them"),
        ({"gpu": {"count": 1, "tensorParallel": True}}, "gpu.count is 1: 2 or more are accepted"),
    ]
    answers = render(*(values for values, _ in refused))
    for (values, message), answer in zip(refused, answers, strict=True):
        assert message in answer.get("error", "accepted"), values


def test_the_charts_schema_knows_every_value() -> None:
    chart = FOLDER / "chart" / "lightwell"

    def same(values: Document, schema: Document, path: str) -> None:
        for name, value in values.items():
            assert name in schema["properties"], f"{path}.{name}"
            if isinstance(value, dict) and "properties" in schema["properties"][name]:
                same(value, schema["properties"][name], f"{path}.{name}")

    assert schema() == SCHEMA.read_text(encoding="utf-8"), "python -m deploy.kubernetes.render writes it anew"
    loaded = [
        yaml.safe_load((chart / name).read_text(encoding="utf-8")) for name in ("values.yaml", "values.schema.json")
    ]
    same(*loaded, "values")
