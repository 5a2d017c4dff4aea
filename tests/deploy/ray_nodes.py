"""Runs Ray nodes on this machine until stdin ends. It is a process of its own, as Ray warns and leaves threads behind.

`tests.deploy.ray_nodes` writes the address of two nodes. With a PORT it runs a head and two nodes that serve the
default model. It writes "ready" once it answers, with one engine replica, which becomes two under load. It writes a
word after each line that it reads: "kill" kills a node with one of two replicas, at once; "deploy" begins to put
another version in the application's place, of one replica.
"""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ray
from ray import serve
from ray._private import services
from ray.cluster_utils import Cluster

from deploy.ray.app import build

STORE_BYTES = 80_000_000
"""Bytes of each node's object store: about the least that Ray accepts."""
SCALING = {"max_replicas": 2, "target_ongoing_requests": 2, "upscale_delay_s": 0, "downscale_delay_s": 3600,
           "look_back_period_s": 11}  # fmt: skip
NODE: dict[str, Any] = {"object_store_memory": STORE_BYTES, "node_ip_address": "127.0.0.1"}


def two_nodes() -> None:
    cluster: Any = Cluster(initialize_head=True, head_node_args={**NODE, "num_cpus": 1, "include_dashboard": False})
    cluster.add_node(**NODE, num_cpus=1)
    print(f"nodes: {cluster.address}", flush=True)
    sys.stdin.read()
    cluster.shutdown()


def serving_nodes(port: int) -> None:
    head = {**NODE, "num_cpus": 0, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes = [cluster.add_node(**NODE, num_cpus=1) for _ in range(2)]
    # Ray would replace the loopback address by the machine's outer address, on which nothing listens.
    services.resolve_ip_for_localhost = lambda host: host
    ray.init(address=cluster.address, _node_ip_address="127.0.0.1", log_to_driver=False)
    serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
    serve.run(application(**SCALING), name="lightwell")
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "kill":
            kill_workers(nodes[-1])
            cluster.remove_node(nodes.pop(), allow_graceful=False)
            print("killed", flush=True)
        else:
            target = serve.RunTarget(application(max_num_seqs=32), name="lightwell")
            serve.run_many([target], wait_for_ingress_deployment_creation=False, wait_for_applications_running=False)
            print("deployed", flush=True)
    serve.shutdown()
    ray.shutdown()
    cluster.shutdown()


def kill_workers(node: Any) -> None:
    """Kill the workers as when their machine fails. Workers that `remove_node` leaves run until they notice that their
    raylet is gone. On a busy machine that is long enough to end their streams.
    """
    (raylet,) = node.all_processes["raylet"]
    for children in Path(f"/proc/{raylet.process.pid}/task").glob("*/children"):
        for pid in children.read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


def application(**arguments: int) -> serve.Application:
    # Long timeouts: on a busy machine a test may stop workers, and a replica may end its answers, for a long time.
    return build({"threads": 1, "worker_timeout": 600, "shutdown_grace": 600, **arguments})


if __name__ == "__main__":
    if len(sys.argv) == 1:
        two_nodes()
    else:  # not in TMPDIR: the path of a socket has 107 bytes at most
        with TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as temporary:
            os.environ["RAY_TMPDIR"] = temporary
            serving_nodes(int(sys.argv[1]))
