"""Names of settings on the command line and in the environment."""

ENV_PREFIX = "LIGHTWELL_"


def flag_name(name: str) -> str:
    """Return `--max-num-seqs` for `max_num_seqs`."""
    return "--" + name.replace("_", "-")


def variable_name(name: str) -> str:
    """`max_num_seqs` -> `LIGHTWELL_MAX_NUM_SEQS`."""
    return ENV_PREFIX + name.upper()


def is_service_link(value: str) -> bool:
    """Return whether Kubernetes set the value: LIGHTWELL_PORT=tcp://... in pods next to a service named lightwell."""
    return value.startswith("tcp://")
