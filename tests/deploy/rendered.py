"""Renders the chart with Helm, with values that turn each option on and off once. It checks nothing."""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"

Document = dict[str, Any]

POOL = yaml.safe_load((FOLDER / "inference-pool" / "values.yaml").read_text(encoding="utf-8"))

VALUES: dict[str, dict[str, Any]] = {
    "default": {},
    "gpu": {"gpu": {"count": 2}, "strategy": {"maxSurge": 0, "maxUnavailable": 1}},
    "tensor parallel": {"gpu": {"count": 4, "tensorParallel": True}},
    "hpa": {"autoscaling": {"kind": "hpa"}},
    "keda": {"autoscaling": {"kind": "keda"}},
    "monitoring": {"serviceMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}},
    "pool": POOL,
    "off": {
        "podDisruptionBudget": {"enabled": False},
        "networkPolicy": {"enabled": False},
        "serviceAccount": {"name": "mine"},
        "apiKeys": {"configMap": "hashes"},
        "cache": {"existingClaim": "shared"},
    },
    "openshift": {
        "podSecurityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None},
        "resources": {"requests": {"cpu": "500m"}},
    },
    "on": {
        "fullnameOverride": "lightwell-own",
        "image": {
            "repository": "example.com/lightwell",
            "tag": "1.2",
            "digest": "sha256:" + "0a" * 32,
            "pullSecrets": [{"name": "pull"}],
        },
        "args": ["--log-format", "json"],
        "envFrom": [{"secretRef": {"name": "more"}}],
        "extraVolumes": [{"name": "certificates", "configMap": {"name": "certificates"}}],
        "extraVolumeMounts": [{"name": "certificates", "mountPath": "/certificates", "readOnly": True}],
        "initContainers": [{"name": "wait", "image": "busybox:1.37", "command": ["true"]}],
        "securityContext": {"runAsNonRoot": True},
        "resources": {"requests": {"cpu": 12}, "limits": {"cpu": "7500m"}},
        "ingress": {
            "enabled": True,
            "className": "nginx",
            "annotations": {"example.com/timeout": "600"},
            "hosts": [{"host": "lightwell.example", "paths": [{"path": "/"}]}],
            "tls": [{"secretName": "tls", "hosts": ["lightwell.example"]}],
        },
        "model": {"name": "org/name", "claim": "models", "hubTokenSecret": "hub"},
        "settings": {
            "max_num_seqs": 128,
            "max_kv_demand": 1.5,
            "batch_invariant": True,
            "cors_origin": ["https://a.example"],
        },
        "extraEnv": [{"name": "OTEL_TRACES_SAMPLER", "value": "always_on"}],
        "apiKeys": {"secret": "keys"},
        "cache": {"persistent": True, "size": "100Gi", "storageClass": "fast"},
        "gpu": {"count": 1, "runtimeClass": "nvidia"},
        "startup": {"seconds": 3601},
        "drain": {"endpointsSeconds": 20, "graceSeconds": 300},
        "service": {"type": "LoadBalancer", "port": 80, "annotations": {"example.com/internal": "true"}},
        "autoscaling": {"kind": "hpa", "minReplicas": 3, "maxReplicas": 30, "waiting": 2, "running": 96},
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
        "networkPolicy": {"egress": [{"ports": [{"protocol": "TCP", "port": 4318}]}]},
        "nodeSelector": {"example.com/pool": "gpu"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "affinity": {"podAntiAffinity": {}},
        "priorityClassName": "high",
        "podAnnotations": {"example.com/team": "search"},
        "podLabels": {"example.com/team": "search"},
    },
}


def render(*values: dict[str, Any]) -> list[dict[str, Any]]:
    """Render each map of values to {"files": text by name} or {"error": message}.

    It runs in a process of its own: the library's runtime takes signals and threads for itself, which other tests need.
    """
    done = subprocess.run(
        [sys.executable, "-m", "deploy.kubernetes.render", "--values", "-"],
        input=json.dumps(values),
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    answer: list[dict[str, Any]] = json.loads(done.stdout)
    return answer


@cache
def texts(which: str) -> dict[str, str]:
    """Return the rendered files of one entry of VALUES, by name."""
    files: dict[str, str] = all_texts()[which]["files"]
    return files


@cache
def all_texts() -> dict[str, dict[str, Any]]:
    return dict(zip(VALUES, render(*VALUES.values()), strict=True))


def documents(which: str) -> dict[str, Document]:
    """Return the objects of one entry of VALUES by kind; the chart makes one object of each kind."""
    loaded = [yaml.load(text, yaml.CSafeLoader) for name, text in texts(which).items() if name.endswith(".yaml")]
    return {document["kind"]: document for document in loaded}


def pod(which: str) -> Document:
    spec: Document = documents(which)["Deployment"]["spec"]["template"]["spec"]
    return spec


def container(which: str) -> Document:
    (only,) = pod(which)["containers"]
    assert isinstance(only, dict)
    return only


def variables(which: str) -> dict[str, str]:
    """Return the container's variables that have their value in the manifest."""
    return {each["name"]: each["value"] for each in container(which)["env"] if "value" in each}
