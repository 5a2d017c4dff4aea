"""Runs two Ray nodes on this machine until stdin ends: `python -m tests.deploy.two_ray_nodes` writes their address."""

import sys
from typing import Any

from ray.cluster_utils import Cluster

STORE_BYTES = 80_000_000
"""Bytes of each node's object store: about the least that Ray accepts."""


def main() -> None:
    node: dict[str, Any] = {"num_cpus": 1, "object_store_memory": STORE_BYTES, "node_ip_address": "127.0.0.1"}
    cluster: Any = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    cluster.add_node(**node)
    print(f"nodes: {cluster.address}", flush=True)
    sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    main()
