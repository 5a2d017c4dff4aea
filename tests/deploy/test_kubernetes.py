"""The chart, the plain manifests and the pool: valid for Kubernetes, and true of the server they are about."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("kubernetes_validate", reason="Schemas of Kubernetes are not installed (the extra nightly)")

import kubernetes_validate

from deploy.kubernetes.render import BANNER, COMPONENTS, PLAIN
from lightwell.server.config.settings import Settings, setting_names
from tests.deploy.rendered import FOLDER, ROOT, VALUES, container, documents, pod, texts, variables
from tests.readme import metrics_table

pytestmark = pytest.mark.nightly

DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
GAUGES = {line.split("`")[1].split("{")[0] for line in metrics_table().splitlines() if "| gauge |" in line}
CUSTOM = ("ScaledObject", "ServiceMonitor", "PrometheusRule")
"""Kinds that Kubernetes itself does not have."""

every_set = pytest.mark.parametrize("which", VALUES)


def load(path: Path) -> Any:
    return yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)


def labels_of_the_pods(which: str) -> dict[str, str]:
    labels: dict[str, str] = documents(which)["Deployment"]["spec"]["template"]["metadata"]["labels"]
    return labels


# ---- valid for Kubernetes


@pytest.mark.parametrize("version", ["1.30", "1.34", "1.37"])
def test_every_object_is_valid_for_the_oldest_and_the_newest_kubernetes(version: str) -> None:
    objects = [(which, kind, document) for which in VALUES for kind, document in documents(which).items()]
    distinct = {str(document): (which, kind, document) for which, kind, document in objects if kind not in CUSTOM}
    wrong = []
    for which, kind, document in distinct.values():
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            wrong.append(f"{which}, {kind}: {error.message}")
    assert len(distinct) > len(VALUES)
    assert not wrong


def test_the_oldest_kubernetes_that_is_tried_is_the_oldest_that_the_chart_takes() -> None:
    chart = load(FOLDER / "chart" / "lightwell" / "Chart.yaml")
    assert chart["kubeVersion"] == ">=1.30.0-0"
    with pytest.raises(kubernetes_validate.ValidationError):  # it has no preStop sleep
        kubernetes_validate.validate(documents("default")["Deployment"], "1.28", strict=True)


def test_objects_of_keda_and_the_prometheus_operator_are_valid_for_these() -> None:
    from cloudcoil.models.keda.v1alpha1 import ScaledObject
    from cloudcoil.models.prometheus_operator.v1 import PrometheusRule, ServiceMonitor

    for model, which in ((ScaledObject, "keda"), (ServiceMonitor, "on"), (PrometheusRule, "on")):
        document = documents(which)[model.__name__]
        read = model.model_validate(document)
        assert (
            read.model_dump(by_alias=True, exclude_unset=True, mode="json") == document
        )  # fields unknown to the schema are lost


def test_the_rules_are_those_that_promtool_tests() -> None:
    files = sorted((ROOT / "deploy" / "prometheus" / "rules").glob("*.yml"))
    assert files
    assert documents("on")["PrometheusRule"]["spec"]["groups"] == [g for file in files for g in load(file)["groups"]]


# ---- the same as plain manifests


def test_the_plain_manifests_are_what_the_chart_makes_of_its_defaults() -> None:
    expected = dict(texts("default"))
    for component, values in COMPONENTS.items():
        (which,) = (name for name, each in VALUES.items() if each == values)
        added = {name: text for name, text in texts(which).items() if name not in expected}
        expected.update({f"components/{component}/{name}": text for name, text in added.items()})
    found = {
        str(path.relative_to(PLAIN)): path.read_text(encoding="utf-8")
        for path in PLAIN.rglob("*.yaml")
        if path.name != "kustomization.yaml"
    }
    written = {name: BANNER + text for name, text in expected.items() if name.endswith(".yaml")}
    assert found == written, "python -m deploy.kubernetes.render writes them anew"


@pytest.mark.parametrize("folder", [path.parent for path in sorted(FOLDER.rglob("kustomization.yaml"))], ids=str)
def test_kustomize_is_given_every_manifest(folder: Path) -> None:
    told = load(folder / "kustomization.yaml")["resources"]
    beside = {path.name for path in folder.glob("*.yaml")} - {"kustomization.yaml"}
    assert set(told) == {name for name in beside if not name.endswith("values.yaml")}


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kubectl_puts_the_components_over_the_plain_manifests(tmp_path: Path) -> None:
    shutil.copytree(PLAIN, tmp_path / "plain")
    file = tmp_path / "plain" / "kustomization.yaml"
    told = load(file) | {"components": ["components/hpa", "components/monitoring"]}
    file.write_text(yaml.safe_dump(told), encoding="utf-8")
    built = subprocess.run(["kubectl", "kustomize", file.parent], capture_output=True, text=True, check=True).stdout
    made = {document["kind"]: document for document in yaml.safe_load_all(built)}
    assert set(made) == {*documents("default"), "HorizontalPodAutoscaler", "ServiceMonitor", "PrometheusRule"}
    assert "replicas" not in made["Deployment"]["spec"]


# ---- relations between objects


@every_set
def test_every_selector_finds_the_pods(which: str) -> None:
    made = documents(which)
    selectors = [made["Service"]["spec"]["selector"]]
    selectors += [each["labelSelector"]["matchLabels"] for each in pod(which)["topologySpreadConstraints"]]
    specs = [made[kind]["spec"] for kind in ("Deployment", "NetworkPolicy", "PodDisruptionBudget") if kind in made]
    selectors += [(spec.get("selector") or spec["podSelector"])["matchLabels"] for spec in specs]
    for selector in selectors:
        # No version and chosen labels: pods from before an upgrade match too, and a Deployment's selector can't change.
        assert selector == {"app.kubernetes.io/name": "lightwell", "app.kubernetes.io/instance": "lightwell"}
        assert selector.items() <= labels_of_the_pods(which).items()
    if "ServiceMonitor" in made:
        wanted = made["ServiceMonitor"]["spec"]["selector"]["matchLabels"]
        assert wanted.items() <= made["Service"]["metadata"]["labels"].items()


def test_a_node_is_emptied_one_pod_at_a_time_and_of_those_that_are_not_ready_at_once() -> None:
    budget = documents("default")["PodDisruptionBudget"]["spec"]
    assert (budget["maxUnavailable"], budget["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")
    assert "PodDisruptionBudget" not in documents("off")


@every_set
def test_every_port_is_that_of_the_server(which: str) -> None:
    made = documents(which)
    (port,) = container(which)["ports"]
    assert variables(which)["LIGHTWELL_PORT"] == str(port["containerPort"])
    assert f"EXPOSE {port['containerPort']}" in DOCKERFILE
    (service,) = made["Service"]["spec"]["ports"]
    assert service["targetPort"] == port["name"]
    if "ServiceMonitor" in made:
        assert made["ServiceMonitor"]["spec"]["endpoints"][0]["port"] == service["name"]
    if "NetworkPolicy" in made:
        assert made["NetworkPolicy"]["spec"]["ingress"][0]["ports"][0]["port"] == port["name"]
    probes = [container(which)[f"{kind}Probe"] for kind in ("startup", "liveness", "readiness")]
    assert {probe["httpGet"]["port"] for probe in probes} == {port["name"]}


@every_set
def test_every_variable_is_a_setting_with_a_value_that_it_takes(which: str) -> None:
    ours = {name: value for name, value in variables(which).items() if name.startswith("LIGHTWELL_")}
    assert {name.removeprefix("LIGHTWELL_").lower() for name in ours} <= set(setting_names())
    Settings.from_sources({}, ours)
    names = [each["name"] for each in container(which)["env"]]
    assert len(names) == len(set(names))
    assert pod(which)["enableServiceLinks"] is False, "these are variables named after other services"


def test_settings_arrive_as_they_were_written() -> None:
    settings = Settings.from_sources({}, variables("on"))
    assert (settings.max_num_seqs, settings.max_kv_demand, settings.batch_invariant) == (128, 1.5, True)
    assert settings.cors_origin == ("https://a.example",)
    assert settings.source == "org/name"


@every_set
def test_every_mount_has_its_volume_and_every_volume_its_mount(which: str) -> None:
    mounts = {mount["name"]: mount["mountPath"] for mount in container(which)["volumeMounts"]}
    assert set(mounts) == {volume["name"] for volume in pod(which)["volumes"]}
    for folder in ("HF_HOME", "TRITON_CACHE_DIR"):
        assert variables(which)[folder].startswith(mounts["cache"] + "/")
    if file := variables(which).get("LIGHTWELL_API_KEY_FILE"):
        assert file.startswith(mounts["keys"] + "/")


def test_what_the_pods_keep_is_a_claim_that_the_chart_makes_or_is_told() -> None:
    def claims(which: str) -> set[str]:
        found = (volume.get("persistentVolumeClaim", {}).get("claimName") for volume in pod(which)["volumes"])
        return {name for name in found if name}

    made = documents("on")["PersistentVolumeClaim"]
    assert claims("on") == {made["metadata"]["name"], "models"}
    assert claims("off") == {"shared"}
    assert claims("default") == set()
    assert not {"PersistentVolumeClaim"} & {*documents("off"), *documents("default")}


# ---- a pod's life


@every_set
def test_probes_ask_what_the_server_means_and_the_grace_period_holds_the_hook_and_the_drain(which: str) -> None:
    asked = {kind: container(which)[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")}
    assert asked == {"startup": "/health/live", "liveness": "/health/live", "readiness": "/health/ready"}
    hook = container(which)["lifecycle"]["preStop"]["sleep"]["seconds"]
    grace = Settings.from_sources({}, variables(which)).shutdown_grace
    assert pod(which)["terminationGracePeriodSeconds"] >= hook + grace + 10


@pytest.mark.parametrize(("which", "seconds"), [("default", 1800), ("on", 3601)])
def test_a_pod_is_given_its_time_to_start_and_a_rollout_more(which: str, seconds: int) -> None:
    probe = container(which)["startupProbe"]
    assert seconds <= probe["periodSeconds"] * probe["failureThreshold"] < seconds + 10
    assert documents(which)["Deployment"]["spec"]["progressDeadlineSeconds"] > seconds


# ---- rights


@every_set
def test_the_pod_meets_the_restricted_standard_has_no_token_and_writes_to_volumes_alone(which: str) -> None:
    security = pod(which)["securityContext"]
    own = container(which)["securityContext"]
    account = documents(which).get("ServiceAccount")
    assert pod(which)["automountServiceAccountToken"] is False
    assert account is None or account["automountServiceAccountToken"] is False
    assert pod(which)["serviceAccountName"] == (account["metadata"]["name"] if account else "mine")
    assert security["runAsNonRoot"] is True
    if which == "openshift":
        assert not {"runAsUser", "runAsGroup", "fsGroup"} & security.keys(), "OpenShift chooses them"
    else:
        assert f"useradd --uid {security['runAsUser']} " in DOCKERFILE
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert own == ({"runAsNonRoot": True} if which == "on" else {}) | {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod(which).keys()
    assert not any("hostPath" in volume for volume in pod(which)["volumes"])


def test_only_a_model_of_the_hub_may_be_fetched() -> None:
    def reachable(which: str) -> set[int]:
        rules = documents(which)["NetworkPolicy"]["spec"]["egress"]
        return {port["port"] for rule in rules for port in rule["ports"]}

    assert reachable("default") == {53}
    assert reachable("on") == {53, 443, 4318}


def test_secrets_are_named_and_not_written_down() -> None:
    token = next(each for each in container("on")["env"] if each["name"] == "HF_TOKEN")
    assert token["valueFrom"] == {"secretKeyRef": {"name": "hub", "key": "token"}}
    volumes = {volume["name"]: volume for volume in pod("on")["volumes"]}
    assert volumes["keys"]["secret"] == {"secretName": "keys"}
    assert {volume["name"]: volume for volume in pod("off")["volumes"]}["keys"]["configMap"] == {"name": "hashes"}


# ---- GPUs and numbers of pods


def test_gpus_are_asked_for_and_used() -> None:
    assert container("gpu")["resources"]["limits"]["nvidia.com/gpu"] == 2
    assert (variables("gpu")["LIGHTWELL_DEVICE"], variables("gpu")["LIGHTWELL_DEVICES"]) == ("cuda", "all")
    assert {"name": "shm", "mountPath": "/dev/shm"} in container("gpu")["volumeMounts"]
    together = Settings.from_sources({}, variables("tensor parallel"))
    assert (together.devices, together.tensor_parallel) == (1, 4)
    assert "LIGHTWELL_DEVICES" not in variables("default")
    assert set(container("default")["resources"]["limits"]) == {"memory"}


@pytest.mark.parametrize("which", ["hpa", "keda", "on"])
def test_an_autoscaler_aims_at_the_deployment_which_then_says_no_number(which: str) -> None:
    made = documents(which)
    scaler = made["ScaledObject" if which == "keda" else "HorizontalPodAutoscaler"]
    deployment = made["Deployment"]
    assert scaler["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert "replicas" not in deployment["spec"]
    assert documents("default")["Deployment"]["spec"]["replicas"] == 2


def test_autoscalers_read_gauges_that_the_server_has_of_the_pods_of_this_release() -> None:
    metrics = documents("hpa")["HorizontalPodAutoscaler"]["spec"]["metrics"]
    read = {metric["pods"]["metric"]["name"] for metric in metrics}
    triggers = documents("keda")["ScaledObject"]["spec"]["triggers"]
    queried = {re.findall(r"sum\((\w+)\{", trigger["metadata"]["query"])[0] for trigger in triggers}
    assert read == queried == {"lightwell_num_requests_waiting", "lightwell_num_requests_running"}
    assert read <= GAUGES
    (rule,) = load(FOLDER / "prometheus-adapter-values.yaml")["rules"]["custom"]
    pattern = re.findall(r'__name__=~"(.*?)"', rule["seriesQuery"])[0]
    assert all(re.fullmatch(pattern, name) for name in read)
    service = documents("keda")["Service"]["metadata"]["name"]
    for trigger in triggers:
        assert f'{{namespace="default",service="{service}"}}' in trigger["metadata"]["query"]
