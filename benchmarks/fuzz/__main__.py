"""Fuzz test: sends malformed and hostile HTTP over raw sockets to a server that it starts.

It sends the catalogue of attacks, then `--count` random mutations of valid requests, then opens `--idle` connections
that send nothing or half a request, then sends the mutations again. Every connection must be answered or closed in
bounded time, without a status of 500 or more. Afterwards a normal request must work and the processes must be the same.
No process may hold more open files than at the start, or more memory than before the second round of mutations. The
seed is random unless given, and printed. The exit status is 1 if a check fails. `benchmarks.hostile` measures how long
large bodies delay other streams.

    python -m benchmarks.fuzz --count 20000 --idle 3000
"""

import argparse
import asyncio
import random
import sys
import time
from itertools import chain

from benchmarks.fuzz.attacks import COMPLETION, catalogue, mutations
from benchmarks.fuzz.thrower import Verdicts, parse, throw_all
from benchmarks.load import percentile
from tests.support.processes import Server, allocated_bytes, descendants, num_open_files, serve
from tests.support.wire import Wire, scrape

RECEIVE_TIMEOUT = 2.0
"""Seconds that the server waits for a head or a body."""
BOUND = 20.0
"""Seconds from its last byte in which a connection must end: ample on a busy machine."""
SERVE = [
    *("--receive-timeout", f"{RECEIVE_TIMEOUT:g}", "--send-timeout", "5", "--log-level", "error"),
    *("--max-num-seqs", "64", "--max-num-batched-tokens", "64"),  # short steps: streams wait for nothing else
    *("--kv-cache-memory", "16MiB"),  # few blocks, so that the first mutations touch all of them
]
MEMORY_SLACK = 8 << 20
"""Bytes by which each process may grow; 400 mutations that came again took 0.0 to 0.1 MiB in each of four runs."""
FILES_SLACK = 4
_SHOWN = 20


async def fuzz(server: Server, count: int, idle: int, seed: int) -> Verdicts:
    """Send all attacks, then check the state of the server."""
    await _normal_request(server)
    files = {pid: num_open_files(pid) for pid in descendants(server.pid)}
    verdicts = await throw_all(server, chain(catalogue(), mutations(seed, count)), BOUND)
    await _idle_connections(server, idle, verdicts)
    await _aftermath(server, verdicts, files, sizes={})
    # Caches filled by the first round are not a leak; a second round must not add memory.
    sizes = {pid: allocated_bytes(pid) for pid in files}
    again = await throw_all(server, mutations(seed, count), BOUND)
    verdicts.wrong += again.wrong
    await _normal_request(server)
    await _aftermath(server, verdicts, files, sizes)
    if set(descendants(server.pid)) != set(files):
        verdicts.wrong.append(f"other processes than before: {list(files)} before, {descendants(server.pid)} after")
    return verdicts


async def _normal_request(server: Server) -> None:
    wire = await Wire.open(server.host, server.port)
    wire.writer.write(COMPLETION)
    head = await wire.read_head()
    body = await wire.read_body(head)
    wire.close()
    if head.status != 200:
        raise RuntimeError(f"a normal request is answered {head.status}: {body[:300]!r}")


async def _idle_connections(server: Server, count: int, verdicts: Verdicts) -> None:
    """Open connections that send nothing, or stop: others are served meanwhile, and all of them end."""
    parts = (b"", b"G", COMPLETION[:40], COMPLETION[:-1])
    wires = []
    for number in range(count):
        wire = await Wire.open(server.host, server.port)
        wire.writer.write(parts[number % len(parts)])
        wires.append(wire)
    began = time.monotonic()
    await _normal_request(server)

    async def ended(wire: Wire) -> bool:
        try:
            async with asyncio.timeout(BOUND):
                content = await wire.reader.read()
        except TimeoutError:
            return False
        except OSError:
            return True
        finally:
            wire.reset()
        return all(status in (408, 503) for status in parse(content).statuses)

    results = await asyncio.gather(*(ended(wire) for wire in wires))
    verdicts.seconds["idle connections"].append(time.monotonic() - began)
    verdicts.statuses["idle connections"]["closed"] += sum(results)
    if not all(results):
        verdicts.wrong.append(f"{results.count(False)} of {count} idle connections did not end as they should")


async def _aftermath(server: Server, verdicts: Verdicts, files: dict[int, int], sizes: dict[int, int]) -> None:
    """Check that the server released files and memory, after waiting some seconds."""
    held: list[str] = []
    for _ in range(50):
        await asyncio.sleep(0.2)
        held = await _held(server, files, sizes)
        if not held:
            return
    verdicts.wrong += held


async def _held(server: Server, files: dict[int, int], sizes: dict[int, int]) -> list[str]:
    """Return the problems: files and memory held beyond `files` and `sizes`, by process id."""
    values = await scrape(server.host, server.port)
    held = []
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_ratio", "inflight_capture_bytes"):
        if values[f"lightwell_{name}"]:
            held.append(f"{name} is {values[f'lightwell_{name}']:g} in the end")
    for pid, before in files.items():
        if (after := num_open_files(pid)) > before + FILES_SLACK:
            held.append(f"open files of process {pid}: {before} before, {after} after")
    for pid, size in sizes.items():
        if (after := allocated_bytes(pid)) > size + MEMORY_SLACK:
            held.append(
                f"memory of process {pid}: {size >> 20} MiB after the first mutations, {after >> 20} MiB in the end"
            )
    return held


def report(verdicts: Verdicts) -> bool:
    print("| attack | connections | answers | longest s |\n|---|---|---|---|")
    for group, seconds in verdicts.seconds.items():
        answers = ", ".join(f"{name} {count}" for name, count in sorted(verdicts.statuses[group].items()))
        print(f"| {group} | {len(seconds)} | {answers} | {percentile(seconds, 1):.1f} |")
    print(f"\n{len(verdicts.wrong)} wrong")
    for problem in verdicts.wrong[:_SHOWN]:
        print(f"  {problem}")
    return not verdicts.wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=5_000, help="random mutations")
    parser.add_argument("--idle", type=int, default=2_000, help="idle connections")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("serve", nargs="*", help="arguments for `lightwell serve` (after --)")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with serve([*SERVE, *options.serve]) as server:
        verdicts = asyncio.run(fuzz(server, options.count, options.idle, options.seed))
    sys.exit(0 if report(verdicts) else 1)


if __name__ == "__main__":
    main()
