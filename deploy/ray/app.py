"""The Ray Serve application: an ingress in front of engine replicas that Ray scales.

    serve run deploy.ray.app:build model=path/to/model min_replicas=1 max_replicas=4

Every argument that is not a field of `Scale` is a setting of `lightwell serve`, with its name in LIGHTWELL_* variables,
in lower case. The module starts nothing itself; a replica runs `deploy.ray.engine`.
"""

import dataclasses
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ray import serve
from ray.serve import Application

from deploy.ray.engine import Engine
from deploy.ray.ingress import Ingress
from lightwell.server.config.setting_names import ENV_PREFIX
from lightwell.server.config.settings import Settings, SettingsError, setting_names
from lightwell.server.worker.engine_worker import ENGINE_FACTORY

_SPARE_GRACE = 10.0
"""Seconds for the processes of a replica to end, in addition to those for its requests."""
_MANY = 100_000
"""Most requests at once: the engine's own admission refuses when there are too many."""
_HEAD_NODE = "node:__internal_head__"
"""A resource that only Ray's head node has."""
_NO_SETTINGS = frozenset({"host", "port", "root_path", "api_key"})
"""Settings that have no meaning here, or (a key) would be shown by Ray's dashboard."""
_AGREED = ("shutdown_grace", "max_body_bytes")
"""Settings that the ingress and Ray know too: they are read here once, so that no replica reads others from its
environment.
"""
_COUNTS = ("min_replicas", "max_replicas", "max_replicas_per_node", "ingress_replicas")
_LEAST_LOOK_BACK = 10.0
"""Seconds between two of Ray's counts: it accepts only longer times to look back."""
_ACCEPTED = dict.fromkeys(_COUNTS, "a whole number of at least 1") | {"target_ongoing_requests": "a number above 0"}
"""Accepted values of the numbers that cannot be 0, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Number of replicas, and the resources that Ray reserves for each."""

    min_replicas: int = 1
    max_replicas: int = 1
    target_ongoing_requests: float = 32.0
    """Requests, running and waiting, per replica that Ray scales towards."""
    upscale_delay_s: float = 10.0
    downscale_delay_s: float = 300.0
    look_back_period_s: float = 30.0
    """Seconds over which requests are averaged."""
    num_cpus: float = 1.0
    num_gpus: float = 0.0
    max_replicas_per_node: int | None = None
    ingress_replicas: int = 1
    engine_factory: str = ENGINE_FACTORY


def build(arguments: Mapping[str, Any]) -> Application:
    """Build the application. Raises SettingsError, which names the argument that cannot be used."""
    scale = read_scale(arguments)
    flags = read_flags(arguments, os.environ)
    settings = Settings.from_sources(flags, {})
    engine = serve.deployment(
        name="Engine",
        autoscaling_config={
            "min_replicas": scale.min_replicas,
            "max_replicas": scale.max_replicas,
            "target_ongoing_requests": scale.target_ongoing_requests,
            "upscale_delay_s": scale.upscale_delay_s,
            "downscale_delay_s": scale.downscale_delay_s,
            "look_back_period_s": scale.look_back_period_s,
        },
        ray_actor_options={"num_cpus": scale.num_cpus, "num_gpus": scale.num_gpus},
        max_replicas_per_node=scale.max_replicas_per_node,  # type: ignore[arg-type, unused-ignore]  # None: as many as fit
        max_ongoing_requests=_MANY,
        graceful_shutdown_timeout_s=settings.shutdown_grace + _SPARE_GRACE,
        graceful_shutdown_wait_loop_s=0.5,
        health_check_period_s=2.0,
        health_check_timeout_s=10.0,
    )
    ingress = serve.deployment(
        name="Ingress",
        num_replicas=scale.ingress_replicas,
        # On the head node: without it the cluster is lost anyway, and the loss of another node ends no ingress.
        ray_actor_options={"num_cpus": 0, "resources": {_HEAD_NODE: 0.001}},
        max_ongoing_requests=_MANY,
        graceful_shutdown_timeout_s=settings.shutdown_grace + _SPARE_GRACE,
    )
    return ingress(serve.ingress()(Ingress)).bind(
        engine(Engine).bind(flags, scale.engine_factory), settings.max_body_bytes
    )


def read_flags(arguments: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the part of the arguments that is settings, as the replicas are given it. Raises SettingsError.

    The body's limit and the grace are always in it: from the arguments, else from `environ`, else their defaults.
    """
    flags: dict[str, Any] = {}
    for name, value in arguments.items():
        if name in Scale.__dataclass_fields__:
            continue
        if name in _NO_SETTINGS:
            remedy = "api_key_file is accepted" if name == "api_key" else "Ray Serve has it"
            raise SettingsError(f"{name} is no argument of the Ray application: {remedy}")
        if name not in setting_names():
            accepted = ", ".join([*Scale.__dataclass_fields__, *sorted({*setting_names()} - _NO_SETTINGS)])
            raise SettingsError(f"{name} is no argument; accepted: {accepted}")
        if value is None:
            raise SettingsError(f"{name}: null is not usable; leave it out for its default")
        flags[name] = value if isinstance(value, list | bool) else str(value)
    variables = [ENV_PREFIX + name.upper() for name in _AGREED]
    settings = Settings.from_sources(flags, {name: environ[name] for name in variables if name in environ})
    return flags | {name: str(getattr(settings, name)) for name in _AGREED}


def read_scale(arguments: Mapping[str, Any]) -> Scale:
    """Return the part of the arguments that is Ray's; text, as from a command line, is parsed. Raises SettingsError."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(Scale):
        if field.name in arguments:
            values[field.name] = _read(field.name, arguments[field.name])
    scale = Scale(**values)
    if scale.look_back_period_s <= _LEAST_LOOK_BACK:
        raise SettingsError(
            f"look_back_period_s: {scale.look_back_period_s:g} is not usable; a number above {_LEAST_LOOK_BACK:g} is "
            "accepted"
        )
    if not 1 <= scale.min_replicas <= scale.max_replicas:
        raise SettingsError(
            f"min_replicas {scale.min_replicas} and max_replicas {scale.max_replicas}: at least 1, and no more than "
            "max_replicas, are accepted"
        )
    return scale


def _read(name: str, value: Any) -> Any:
    if value is None:
        raise SettingsError(f"{name}: null is not usable; leave it out for its default")
    if name == "engine_factory":
        return str(value)
    accepted = _ACCEPTED.get(name, "a number of at least 0")
    try:
        number = int(str(value)) if name in _COUNTS else float(str(value))
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number >= 0) or (number == 0 and name in _ACCEPTED):
        raise SettingsError(f"{name}: {value!r} is not usable; {accepted} is accepted")
    return number
