"""Speed of a server with an OpenAI-compatible API: tokens per second, and the waiting times of its clients."""

import itertools
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

from lightwell.server.terminal.command_errors import CommandError
from lightwell.server.terminal.connection import Connection

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_PROMPT = ("once", "upon", "a", "time", "there", "was")
_WITHOUT_CHATS = (400, 404, 405, 501)
"""Statuses of a server or model that has no chats: then texts are continued."""


class Bench:
    """A measurement of one model of a server with prompts and answers of equal lengths."""

    def __init__(self, connection: Connection, model: str, prompt_words: int, max_tokens: int) -> None:
        self._connection = connection
        self._fields = {"model": model, "max_tokens": max_tokens, "temperature": 0}
        self._prompt_words = prompt_words
        self.route = CHAT

    def measure(self, num_requests: int, concurrency: int) -> dict[str, Any]:
        """Send one request to warm up and then the others. Return the figures by their names, times in milliseconds.

        Raises CommandError if the first request fails, or all others do.
        """
        try:
            self._moments(0)
        except CommandError as error:
            if error.http_status not in _WITHOUT_CHATS:
                raise
            self.route = COMPLETIONS
            self._moments(0)
        started = time.perf_counter()
        with ThreadPoolExecutor(concurrency) as threads:
            answers = [threads.submit(self._moments, number) for number in range(1, num_requests + 1)]
            try:
                wait(answers)
            except KeyboardInterrupt:
                threads.shutdown(wait=False, cancel_futures=True)
                raise
        seconds = time.perf_counter() - started
        failures = [failure for answer in answers if (failure := answer.exception())]
        if len(failures) == len(answers):
            raise failures[0]
        good = [answer.result() for answer in answers if answer.exception() is None]
        num_tokens = sum(count for _, count in good)
        gaps = [later - earlier for times, _ in good for earlier, later in itertools.pairwise(times[1:])]
        return {
            "url": self._connection.url,
            "model": self._fields["model"],
            "route": self.route,
            "requests": len(good),
            "failed": len(failures),
            "concurrency": concurrency,
            "seconds": seconds,
            "output_tokens": num_tokens,
            "tokens_per_second": num_tokens / seconds,
            "time_to_first_token_ms": _quantiles([times[1] - times[0] for times, _ in good]),
            "inter_token_latency_ms": _quantiles(gaps),
        }

    def _moments(self, number: int) -> tuple[list[float], int]:
        """Send a request. Return the times of sending and of each piece of its text, and the number of its tokens.
        Prompts differ from the first word on, so that no prefix is reused.
        """
        words = itertools.islice(itertools.cycle(_PROMPT), self._prompt_words - 1)
        prompt = " ".join([f"{number}:", *words])
        body = {"messages": [{"role": "user", "content": prompt}]} if self.route == CHAT else {"prompt": prompt}
        moments, count = [time.perf_counter()], None
        for event in self._connection.stream(self.route, self._fields | body):
            count = (event.get("usage") or {}).get("completion_tokens", count)
            for choice in event.get("choices") or []:
                if any((choice.get("delta") or choice).get(name) for name in ("content", "text", "reasoning_content")):
                    moments.append(time.perf_counter())
        if len(moments) == 1:
            raise CommandError(f"{self._connection.url}{self.route}: the answer contains no text")
        return moments, count or len(moments) - 1


def as_text(found: dict[str, Any]) -> str:
    """Return the figures for people."""
    lines = [
        "{model} at {url}{route}: {requests} requests, {failed} failed, {concurrency} at a time, {seconds:.2f} s",
        "output               {output_tokens:,} tokens, {tokens_per_second:,.1f} tokens/s",
        "time to first token  {time_to_first_token_ms}",
        "inter-token latency  {inter_token_latency_ms}",
    ]
    shown = {
        name: ", ".join(f"{key} {ms:.1f} ms" for key, ms in value.items()) if isinstance(value, dict) else value
        for name, value in found.items()
    }
    return "\n".join(lines).format(**shown)


def _quantiles(seconds: Sequence[float]) -> dict[str, float]:
    """Return the mean, the median and the 99th percentile in milliseconds; empty without values."""
    ordered = sorted(1000 * value for value in seconds)
    if not ordered:
        return {}
    p50, p99 = (ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.99))
    return {"mean": sum(ordered) / len(ordered), "p50": p50, "p99": p99}
