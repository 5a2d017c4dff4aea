"""A Ray cluster of a head and two nodes that serves the default model: python -m tests.deploy.ray_serve_nodes PORT.

Writes "ready" once it answers. A line on stdin kills a node with one of the two engine replicas, at once; "killed" is
written then. The end of stdin ends all of it. A process of its own, as Ray warns and leaves threads behind.
"""

import sys
from typing import Any

import ray
from ray import serve
from ray._private import services
from ray.cluster_utils import Cluster

from deploy.ray.app import build

STORE_BYTES = 80_000_000
"""Of each node's object store: about the least that Ray takes."""


def main() -> None:
    node: dict[str, Any] = {"object_store_memory": STORE_BYTES, "node_ip_address": "127.0.0.1"}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "num_cpus": 0, "include_dashboard": False})
    nodes = [cluster.add_node(**node, num_cpus=1) for _ in range(2)]
    # Ray would put the machine's outer address in the loopback's place, where nobody listens.
    services.resolve_ip_for_localhost = lambda host: host
    ray.init(address=cluster.address, _node_ip_address="127.0.0.1", log_to_driver=False)
    serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})
    arguments = {"min_replicas": 2, "max_replicas": 2, "threads": 1}
    serve.run(build(arguments), name="lightwell")
    print("ready", flush=True)
    for _ in sys.stdin:
        cluster.remove_node(nodes.pop(), allow_graceful=False)
        print("killed", flush=True)
    serve.shutdown()  # type: ignore[no-untyped-call]
    ray.shutdown()
    cluster.shutdown()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
