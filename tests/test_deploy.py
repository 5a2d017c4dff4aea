"""The files that deploy the server elsewhere agree with each other and with the settings."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from lightwell.server.config.setting_names import ENV_PREFIX
from lightwell.server.config.settings import setting_names
from lightwell.server.engine.execution import compile_cache

ROOT = Path(__file__).resolve().parent.parent
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
VARIABLES = {ENV_PREFIX + name.upper() for name in setting_names()}


def load(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


SERVICES = load("deploy/compose.yaml")["services"]


def test_prometheus_scrapes_the_service_of_the_compose_file_at_the_port_of_the_image() -> None:
    (job,) = load("deploy/prometheus/prometheus.yml")["scrape_configs"]
    (target,) = job["static_configs"][0]["targets"]
    host, port = target.split(":")
    assert host in SERVICES
    assert f"EXPOSE {port}" in DOCKERFILE
    assert f"LIGHTWELL_PORT={port}" in DOCKERFILE


def mounts(service: str) -> dict[str, Path]:
    """Return which of our files a container of the compose file sees, and where."""
    volumes = [volume.split(":") for volume in SERVICES[service]["volumes"]]
    return {target: ROOT / "deploy" / source for source, target, *_ in volumes if source.startswith("./")}


def flags(service: str) -> dict[str, str]:
    return dict(flag.split("=", 1) for flag in SERVICES[service]["command"])


def test_the_prometheus_of_the_compose_file_finds_its_configuration_and_rules() -> None:
    config = Path(flags("prometheus")["--config.file"])
    folder = mounts("prometheus")[str(config.parent)]
    (pattern,) = load(f"deploy/prometheus/{config.name}")["rule_files"]
    assert {path.name for path in folder.glob(pattern)} == {"alerts.yml", "objectives.yml"}


def test_the_grafana_of_the_compose_file_finds_its_data_and_its_dashboard() -> None:
    mounted = mounts("grafana")
    (source,) = load("deploy/grafana/provisioning/datasources/prometheus.yml")["datasources"]
    host, port = source["url"].removeprefix("http://").split(":")
    assert SERVICES[host]["ports"][0].endswith(f":{port}")
    scrapes = load("deploy/prometheus/prometheus.yml")["global"]
    assert source["jsonData"]["timeInterval"] == scrapes["scrape_interval"]
    (provider,) = load("deploy/grafana/provisioning/dashboards/lightwell.yml")["providers"]
    assert [path.name for path in mounted[provider["options"]["path"]].iterdir()] == ["lightwell.json"]
    assert mounted["/etc/grafana/provisioning"] == ROOT / "deploy/grafana/provisioning"  # where Grafana looks
    home = Path(SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert (mounted[str(home.parent)] / home.name).is_file()


def test_the_services_of_the_compose_file_are_pinned_private_and_without_rights() -> None:
    services = load("deploy/compose.yaml")["services"]
    for name, service in services.items():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        assert re.search(r":v?\d+\.\d+\.\d+$", service["image"]) or name == service["image"] == "lightwell"
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
    grafana = services["grafana"]["environment"]
    assert grafana["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert grafana["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"


def test_every_variable_that_the_files_set_is_a_setting() -> None:
    compose = set(SERVICES["lightwell"]["environment"])
    image = set(re.findall(r"\b(LIGHTWELL_\w+)=", DOCKERFILE))
    assert compose | image <= VARIABLES


def test_the_image_installs_the_torch_that_the_constraints_pin() -> None:
    pinned = re.search(r"^torch==.*$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert pinned
    assert f'ARG TORCH_SPEC="{pinned[0]}"' in DOCKERFILE


def test_the_image_installs_what_every_setting_needs() -> None:
    """Check that --otlp-endpoint has its extra, which cannot be added to a read-only container."""
    command = re.search(r'python3 -c "(import tomllib;.*?)" > requirements.txt', DOCKERFILE)
    assert command
    written = subprocess.run([sys.executable, "-c", command[1]], cwd=ROOT, capture_output=True, text=True, check=True)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["otel"]]
    assert set(written.stdout.splitlines()) == {each for each in wanted if not each.startswith("lightwell-client")}
    assert "install --no-deps . ./clients/python" in DOCKERFILE


def test_the_dockerfile_begins_with_its_base_so_that_builders_may_choose_it() -> None:
    assert DOCKERFILE.startswith("ARG BASE_IMAGE=")
    assert all(line == "FROM ${BASE_IMAGE}" or " AS " in line for line in re.findall(r"^FROM .*$", DOCKERFILE, re.M))


def test_a_user_of_any_number_may_write_where_the_image_s_own_may() -> None:
    """Check for OpenShift, which runs a container as a random user of group 0."""
    (user,) = re.findall(r"^USER (\S+)$", DOCKERFILE, re.MULTILINE)
    assert user == "10001:0"
    folders = "/cache /var/lib/lightwell"
    assert f"chgrp -R 0 {folders} && chmod -R g=u {folders}" in DOCKERFILE


@pytest.mark.tool
def test_hadolint_has_nothing_to_say() -> None:
    if not os.environ.get("TEST_TOOLS"):
        pytest.skip("hadolint is run by `make test-nightly` (tests/tools/install.sh)")
    subprocess.run([ROOT / ".tools" / "hadolint" / "bin" / "hadolint", ROOT / "Dockerfile"], check=True)


def test_the_image_is_healthy_where_lightwell_health_says_so() -> None:
    """Check that `lightwell health` finds the port by itself (a port of the image's own made a server at another port
    unhealthy for ever), and that the check waits as long as a pod may take to start.
    """
    checks = re.findall(r"^HEALTHCHECK (?:.*\\\n)?.*CMD (.*)$", DOCKERFILE, re.MULTILINE)
    assert [json.loads(check) for check in checks] == [["lightwell", "health"]]
    (seconds,) = re.findall(r"--start-period=(\d+)s", DOCKERFILE)
    assert int(seconds) >= load("deploy/kubernetes/chart/lightwell/values.yaml")["startup"]["seconds"]


def test_the_image_for_gpus_alone_has_a_compiler() -> None:
    (installed,) = re.findall(r"^RUN (?:.*\\\n)*.*apt-get install(?:.*\\\n)*.*", DOCKERFILE, re.MULTILINE)
    assert installed.startswith('RUN if [ "${DEVICE}" = cuda ]')
    assert {"gcc", "libc6-dev", "${headers:-}"} <= set(installed.split())
    assert set(re.findall(r"^ARG DEVICE.*", DOCKERFILE, re.MULTILINE)) == {"ARG DEVICE=cpu"}


def test_code_for_a_gpu_is_kept_where_models_are() -> None:
    variables = dict(re.findall(r"^ +(\w+)=(\S+)", DOCKERFILE, re.MULTILINE))
    assert variables[compile_cache.VARIABLE].startswith(variables["HF_HOME"] + "/")


@pytest.mark.parametrize("user", [pytest.param("root", marks=pytest.mark.nightly), "12345"])
def test_the_server_needs_no_rights_no_home_and_no_cache_and_leaves_nothing_in_tmp(user: str) -> None:
    """Run with what --read-only, --cap-drop ALL and --user leave, made of namespaces: no container engine is needed."""
    number = user if user.isdigit() else "0"
    alone = ["unshare", "--user", f"--map-user={number}", f"--map-group={number}", "--keep-caps", "--mount", "--fork"]
    locked = [*alone, str(ROOT / "tests" / "tools" / "read_only.sh")]
    if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine lets nobody make namespaces (unshare --user)")
    if any(Path(each).is_relative_to("/tmp") for each in (ROOT, sys.prefix, sys.base_prefix)):
        pytest.skip("what is tried lies in /tmp, in whose place the container has an empty folder")
    refused = subprocess.run([*locked, "touch", str(ROOT / "written")], capture_output=True, text=True, check=False)
    assert "Read-only file system" in refused.stderr
    check = (ROOT / "tests" / "tools" / "serve_once.py").read_text(encoding="utf-8")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "HOME": "/nonexistent"}
    command = [*locked, sys.executable, "-c", check]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    assert (answer["status"], answer["capabilities"], answer["is_read_only"]) == (0, "0", True)
    assert (answer["user"], answer["left_in_tmp"]) == (user, [])
    assert answer["text"]
