"""Broken, odd and hostile HTTP over raw sockets, against a server of its own: nothing may hurt it.

Throws the catalogue of attacks, then `--count` random mutations of valid requests, then opens `--idle` connections that
say nothing or half a request. Every connection must be answered or closed in bounded time, without a status of 500 or
more; afterwards the next normal request works, the worker is the same, and open files and memory are back where they
were. The seed is drawn afresh unless given, and printed. Ends with status 1 when anything is wrong.

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
from benchmarks.processes import Server, descendants, num_open_files, proportional_bytes, serve
from benchmarks.wire import Wire, samples

RECEIVE_TIMEOUT = 2.0
"""Of the server: the time for a head or a body to come."""
BOUND = 20.0
"""Seconds from its last byte in which a connection must end: on a busy machine with room to spare."""
SERVE = ["--receive-timeout", f"{RECEIVE_TIMEOUT:g}", "--send-timeout", "5", "--log-level", "error"]
MEMORY_SLACK = 160 << 20
"""Threads that have not met a large body yet still get arenas of their own; 126 to 150 MiB grow to 216 or 231."""
FILES_SLACK = 4
_SHOWN = 20


async def fuzz(server: Server, count: int, idle: int, seed: int) -> Verdicts:
    """Everything, and what is left of the server afterwards."""
    await _normal_request(server)
    first = await throw_all(server, catalogue(), BOUND)  # what an attack makes the server learn is not a leak
    pids, files, size = descendants(server.pid), num_open_files(server.pid), proportional_bytes(server.pid)
    verdicts = await throw_all(server, chain(catalogue(), mutations(seed, count)), BOUND)
    verdicts.wrong = first.wrong + verdicts.wrong
    await _idle_connections(server, idle, verdicts)
    await _normal_request(server)
    await _aftermath(server, verdicts, files, size)
    if descendants(server.pid) != pids:
        verdicts.wrong.append(f"other processes than before: {pids} before, {descendants(server.pid)} after")
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
    """Connections that say nothing, or stop: others are served beside them, and all of them end."""
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


async def _aftermath(server: Server, verdicts: Verdicts, files: int, size: int) -> None:
    """What the server holds, once it had some seconds to give it back."""
    held: list[str] = []
    for _ in range(50):
        await asyncio.sleep(0.2)
        held = await _held(server, files, size)
        if not held:
            return
    verdicts.wrong += held


async def _held(server: Server, files: int, size: int) -> list[str]:
    wire = await Wire.open(server.host, server.port)
    values = samples((await wire.ask("GET", "/metrics")).body.decode())
    wire.close()
    held = []
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_ratio", "inflight_capture_bytes"):
        if values[f"lightwell_{name}"]:
            held.append(f"{name} is {values[f'lightwell_{name}']:g} in the end")
    if num_open_files(server.pid) > files + FILES_SLACK:
        held.append(f"open files: {files} before, {num_open_files(server.pid)} after")
    if proportional_bytes(server.pid) > size + MEMORY_SLACK:
        held.append(f"memory: {size >> 20} MiB before, {proportional_bytes(server.pid) >> 20} MiB after")
    return held


def report(verdicts: Verdicts) -> bool:
    """Prints the table; True when nothing is wrong."""
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
