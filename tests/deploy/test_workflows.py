"""The workflows of .github: two linters find no errors, and the script of each step runs."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent.parent
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
DOCKER = """#!/bin/sh
echo "$@" >> "$DOCKER_CALLS"
case "$*" in *imagetools\\ inspect*) echo '"sha256:'$(printf %064d 7)'"';; esac
"""
"""A fake of docker, which cannot run inside a container: it writes its arguments to a file."""


def _scripts() -> list[Any]:
    found = []
    for path in WORKFLOWS:
        workflow = yaml.safe_load(path.read_text("utf-8"))
        for name, job in workflow["jobs"].items():
            for i, step in enumerate(job.get("steps", [])):
                if "run" in step:
                    environment = {**job.get("env", {}), **step.get("env", {})}
                    found.append(pytest.param(step["run"], environment, id=f"{path.stem}-{name}-{i}"))
    return found


@pytest.mark.tool
def test_the_workflows_follow_the_schema_of_github() -> None:
    _run(["check-jsonschema", "--builtin-schema", "vendor.github-workflows", *map(str, WORKFLOWS)])


@pytest.mark.tool
def test_a_security_linter_has_no_finding() -> None:
    _run(["zizmor", "--offline", *map(str, WORKFLOWS)])


@pytest.mark.tool
@pytest.mark.parametrize(("script", "environment"), _scripts())
def test_the_script_of_each_step_runs(script: str, environment: dict[str, str], tmp_path: Path) -> None:
    calls, output = tmp_path / "calls", tmp_path / "output"
    docker = tmp_path / "bin/docker"
    docker.parent.mkdir()
    docker.write_text(DOCKER)
    docker.chmod(0o755)
    values = {name: re.sub(r"\$\{\{.*?\}\}", "x", str(value)) for name, value in environment.items()}
    settings = {
        "PATH": f"{docker.parent}:{ROOT / '.venv/bin'}:{os.environ['PATH']}",
        "GITHUB_REF_NAME": f"v{_version()}",
        "GITHUB_OUTPUT": str(output),
        "DOCKER_CALLS": str(calls),
        "ARGS": "--collect-only -q",  # this test is part of a run of the tests
        "WHEELS": "",  # none for other platforms
    }
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", script],
        cwd=ROOT,
        env={**os.environ, **values, **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    if "docker" in script:
        assert calls.read_text().count("\n") == script.count("docker ")
    if "GITHUB_OUTPUT" in script:
        assert re.fullmatch(r"digest=sha256:\d{64}\n", output.read_text())


def _version() -> str:
    from deploy.release.versions import version

    return version()


def _run(command: list[str]) -> None:
    if not os.environ.get("TEST_TOOLS"):
        pytest.skip("the linters are run by `make test-nightly` (tests/tools/install.sh)")
    done = subprocess.run(
        [ROOT / ".tools/workflows/bin" / command[0], *command[1:]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
