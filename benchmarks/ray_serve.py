"""Runs the Ray Serve application on a local cluster, with timed stand-in engines: `python -m benchmarks.ray_serve`.

It prints output tokens/s of one, two and four replicas next to the plain server with one worker; what clients saw when
a node with one of four replicas was killed under load; and how replicas came with a load and went after it. The engines
only take their time, so few cores are enough; what HTTP, the ingress and Ray cost is real. It starts its own cluster on
the loopback interface and ends it.
"""

import argparse
import asyncio
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray._private import services
from ray.cluster_utils import Cluster

from benchmarks.load import Load, closed_loop, exchange
from benchmarks.simulation.step_times import StepTimes
from benchmarks.timed_server import STEP_TIMES, Fleet, bytes_per_block, make_model, timed_server
from deploy.ray.app import build
from tests.support.processes import LOOPBACK, ROOT, free_port

REPLICAS = (1, 2, 4)
STORE_BYTES = 80_000_000
CLIENTS_PER_REPLICA = 8
TOKENS = 64
KILL_AFTER = 2.0
"""Seconds of load before the node is killed."""
SCALING = {"min_replicas": 1, "max_replicas": 3, "target_ongoing_requests": CLIENTS_PER_REPLICA, "upscale_delay_s": 1,
           "downscale_delay_s": 5, "look_back_period_s": 11}  # fmt: skip
PATIENCE = 180.0
"""Seconds for replicas to come or go."""
STEPS = StepTimes(base=0.02, per_prompt_token=1e-5, per_sequence=1e-4)


def bodies(count: int) -> list[dict[str, Any]]:
    return [{"prompt": [5 + i % 200] * 32, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
            for i in range(count)]  # fmt: skip


@contextmanager
def local_cluster() -> Iterator[tuple[Cluster, list[Any]]]:
    """Start a head without engines, and a node for each of the most replicas."""
    node: dict[str, Any] = {"object_store_memory": STORE_BYTES, "node_ip_address": LOOPBACK}
    # Ray would put the machine's outer address in the loopback's place, where nobody listens.
    services.resolve_ip_for_localhost = lambda host: host
    # Not where TMPDIR says: the path of a socket has 107 bytes at most.
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as folder:
        os.environ["RAY_TMPDIR"] = folder
        cluster = Cluster()
        try:
            cluster.add_node(**node, num_cpus=0, include_dashboard=False)
            nodes = [cluster.add_node(**node, num_cpus=1) for _ in range(max(REPLICAS))]
            ray.init(address=cluster.address, _node_ip_address=LOOPBACK, log_to_driver=False)
            yield cluster, nodes
            serve.shutdown()
        finally:
            ray.shutdown()
            cluster.shutdown()


def deploy(model: Path, scale: dict[str, Any]) -> None:
    arguments = {
        "model": str(model), "threads": 1, "device": "cpu", "kv_cache_memory": 1023 * bytes_per_block(model),
        "max_replicas_per_node": 1, "engine_factory": "benchmarks.timed_engine:TimedEngine.from_folder", **scale,
    }  # fmt: skip
    serve.run(build(arguments), name="lightwell")


def loaded(port: int, num_replicas: int, rounds: int) -> Load:
    clients = CLIENTS_PER_REPLICA * num_replicas
    return asyncio.run(closed_loop(LOOPBACK, port, bodies(clients * rounds), clients))


async def outcome(port: int, body: dict[str, Any]) -> str:
    """Return how a request ended."""
    try:
        (await exchange(LOOPBACK, port, body)).timeline()
    except Exception as error:
        text = str(error)
        return next((code for code in ("worker_lost", "not_ready") if code in text), text[:80])
    return "whole"


async def killed(port: int, cluster: Cluster, node: Any, num_requests: int) -> tuple[Counter[str], float]:
    """Return how each of the requests ended, and seconds from the kill until the last had ended."""
    places = asyncio.Semaphore(CLIENTS_PER_REPLICA * max(REPLICAS))
    ends: Counter[str] = Counter()

    async def request(body: dict[str, Any]) -> None:
        async with places:
            ends[await outcome(port, body)] += 1

    tasks = [asyncio.create_task(request(body)) for body in bodies(num_requests)]
    await asyncio.sleep(KILL_AFTER)
    killed_at = time.perf_counter()
    await asyncio.to_thread(cluster.remove_node, node, False)
    await asyncio.gather(*tasks)
    return ends, time.perf_counter() - killed_at


async def until_running(port: int, num_clients: int, num_replicas: int) -> tuple[Counter[str], float]:
    """Return how the requests of `num_clients` clients ended that came until `num_replicas` replicas ran, and the
    seconds that took.
    """
    ends: Counter[str] = Counter()
    is_over = asyncio.Event()

    async def client(body: dict[str, Any]) -> None:
        while not is_over.is_set():
            ends[await outcome(port, body)] += 1

    started = time.perf_counter()
    tasks = [asyncio.create_task(client(body)) for body in bodies(num_clients)]
    while await asyncio.to_thread(replica_states) != {"RUNNING": num_replicas}:
        if time.perf_counter() > started + PATIENCE:
            raise RuntimeError(f"after {PATIENCE:.0f} s there are replicas {replica_states()}")
        await asyncio.sleep(0.25)
    seconds = time.perf_counter() - started
    is_over.set()
    await asyncio.gather(*tasks)
    return ends, seconds


def replica_states() -> dict[str, int]:
    """Return how many engine replicas are in which state, as Ray reports it."""
    states = serve.status().applications["lightwell"].deployments["Engine"].replica_states
    return {state: count for state, count in states.items() if count}


def autoscaled(port: int, model: Path) -> None:
    """Scale from one replica to the most under load, then back. Print how long it took and how requests ended."""
    most = SCALING["max_replicas"]
    deploy(model, {"min_replicas": 1, "max_replicas": 1})
    asyncio.run(until_running(port, 0, 1))
    deploy(model, SCALING)
    for num_clients, wanted in ((CLIENTS_PER_REPLICA * most, most), (1, 1)):
        before = replica_states()
        ends, seconds = asyncio.run(until_running(port, num_clients, wanted))
        print(f"{num_clients} clients, replicas {before}: {wanted} running {seconds:.0f} s later; {dict(ends)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6, help="requests of each client")
    rounds = parser.parse_args().rounds
    os.environ |= {STEP_TIMES: STEPS.to_json(), "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1",
                   "PYTHONPATH": str(ROOT)}  # fmt: skip
    print("| | output tokens/s | TTFT p50 of all, ms |\n|---|---|---|")
    with timed_server(Fleet(1, STEPS)) as server:
        tell("plain server", loaded(server.port, 1, rounds))
    with tempfile.TemporaryDirectory() as folder, local_cluster() as (cluster, nodes):
        model = make_model(Path(folder) / "timed")
        port = free_port()
        serve.start(proxy_location="HeadOnly", http_options={"host": LOOPBACK, "port": port})
        for num_replicas in REPLICAS:
            deploy(model, {"min_replicas": num_replicas, "max_replicas": num_replicas})
            tell(f"{num_replicas} replicas", loaded(port, num_replicas, rounds))
        ends, seconds = asyncio.run(killed(port, cluster, nodes[-1], CLIENTS_PER_REPLICA * max(REPLICAS) * rounds))
        print(f"\none of {max(REPLICAS)} nodes killed: {dict(ends)}; the rest had ended {seconds:.1f} s later")
        autoscaled(port, model)


def tell(name: str, load: Load) -> None:
    firsts = sorted(timeline.time_to_first_token for timeline in load.timelines)
    print(f"| {name} | {load.tokens_per_second:.0f} | {1000 * firsts[len(firsts) // 2]:.0f} |", flush=True)


if __name__ == "__main__":
    main()
