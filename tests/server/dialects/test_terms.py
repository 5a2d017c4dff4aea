"""Timeouts and priorities of requests, and the answers of a full queue."""

import asyncio
import re
import time
from pathlib import Path
from typing import Any

import pytest

from lightwell.server.engine.messages.request import EmbedTask
from lightwell.server.generation.supported_routes import CLASSIFICATIONS, JUDGEMENTS, SCORINGS, SPARSE
from lightwell.server.http.errors import QueueFull
from tests.server.dialects.looks import at_site, engine_of
from tests.server.dialects.routes import ROUTES, RUN_NOTHING, at_path
from tests.server.dialects.test_admin import bearer, write_keys
from tests.server.fake_client import FakeEngine
from tests.server.serving import error_of, site


def site_of(folder: Path, path: str) -> Any:
    """Return an application that answers this route."""
    return at_path(folder, path) if path in (*SCORINGS, *CLASSIFICATIONS, SPARSE) else at_site(folder, engine_of())


def check_deadlines(engine: FakeEngine, begin: float, seconds: float) -> None:
    """Check that each submitted request must end `seconds` after it came, which was between `begin` and now."""
    deadlines = [each.deadline for each in engine.submitted]
    assert deadlines
    assert all(deadline is not None and begin <= deadline - seconds <= time.monotonic() for deadline in deadlines)


@pytest.mark.parametrize(("path", "body"), ROUTES.items())
async def test_the_field_and_the_header_both_set_the_deadline_and_the_priority_goes_along(
    tmp_path: Path, path: str, body: dict[str, Any]
) -> None:
    async with site_of(tmp_path, path) as lightwell:
        for more, headers, seconds in (
            ({"timeout": 500, "priority": 3}, {}, 500),
            ({"priority": 3}, {"X-Request-Timeout": "300.5"}, 300.5),
        ):
            lightwell.engine.submitted.clear()
            begin = time.monotonic()
            assert (await lightwell.post(path, {**body, **more}, headers=headers)).status_code == 200
            check_deadlines(lightwell.engine, begin, seconds)
            assert {each.priority for each in lightwell.engine.submitted} == {3}
        lightwell.engine.submitted.clear()
        error = await lightwell.error(path, {**body, "timeout": 1e-6}, 504)
        # The second text is for a busy machine, where reading the body takes half a second longer.
        reached = "(it was still being read|its answer was not ready to be sent)"
        assert re.search(f"within 1e-06 s: {reached}", error["message"])
        assert not lightwell.engine.submitted


@pytest.mark.parametrize(
    ("field", "header", "maximum", "expected"),
    [
        (190, "170", 600, 170),
        (170, "190", 600, 170),
        (900, None, 600, 600),
        (None, None, 600, 600),
        (109, None, 0, 109),
        (None, None, 0, None),
    ],
)
async def test_the_least_of_what_is_said_counts(
    tmp_path: Path, field: float | None, header: str | None, maximum: float, expected: float | None
) -> None:
    async with site(tmp_path, request_timeout=maximum) as lightwell:
        headers = {} if header is None else {"X-Request-Timeout": header}
        begin = time.monotonic()
        answer = await lightwell.post("/v1/completions", {"prompt": "abc", "timeout": field}, headers=headers)
        assert answer.status_code == 200
        assert len(lightwell.engine.submitted) == 1
        if expected is None:
            assert lightwell.engine.submitted[0].deadline is None
        else:
            check_deadlines(lightwell.engine, begin, expected)


@pytest.mark.parametrize("value", ["soon", "0", "-3", "nan", "inf"])
async def test_a_header_that_is_no_time_is_refused_by_its_name(tmp_path: Path, value: str) -> None:
    async with site(tmp_path) as lightwell:
        answer = await lightwell.post("/v1/completions", {"prompt": "abc"}, headers={"X-Request-Timeout": value})
        assert answer.status_code == 400
        assert error_of(answer)["param"] == "X-Request-Timeout"
        assert value in error_of(answer)["message"]
        assert not lightwell.engine.submitted


async def test_an_answer_that_is_not_there_in_time_is_a_504_and_the_engine_is_told(tmp_path: Path) -> None:
    for seconds in (0.5, 2, 8, 32):  # on a busy machine it may end before the engine gets the request
        engine = FakeEngine(gate=asyncio.Event())
        async with site(tmp_path, engine) as lightwell:
            error = await lightwell.error("/v1/completions", {"prompt": "abc", "timeout": seconds}, 504)
        assert error["code"] == "deadline_exceeded"
        assert f"within {seconds} s" in error["message"]
        if engine.submitted:
            break
    assert [each.handle.was_aborted for each in engine.submitted] == [True]


async def test_going_before_everybody_else_is_refused_unless_the_server_allows_it(tmp_path: Path) -> None:
    async with site(tmp_path) as lightwell:
        error = await lightwell.error("/v1/embeddings", {"input": "abc", "priority": -1}, 400)
        assert (error["param"], "--allow-priority" in error["message"]) == ("priority", True)
        assert not lightwell.engine.submitted
    async with site(tmp_path, allow_priority=True) as lightwell:
        assert (await lightwell.post("/v1/embeddings", {"input": "abc", "priority": -1})).status_code == 200
        assert [(each.priority, type(each.task)) for each in lightwell.engine.submitted] == [(-1, EmbedTask)]


@pytest.mark.parametrize("allow_priority", [False, True])
@pytest.mark.parametrize(("min_priority", "without"), [(-5, 0), (0, 0), (5, 5)])
async def test_a_key_says_how_early_its_requests_may_go(
    allow_priority: bool, min_priority: int, without: int, tmp_path: Path
) -> None:
    body, headers = {"input": "abc"}, {"authorization": "Bearer alice"}
    file = write_keys(tmp_path, alice=f"min_priority = {min_priority}")
    async with site(tmp_path, api_key_file=file, allow_priority=allow_priority) as lightwell:
        assert (await lightwell.post("/v1/embeddings", body, headers=headers)).status_code == 200
        for priority in (min_priority, 9):
            answer = await lightwell.post("/v1/embeddings", {**body, "priority": priority}, headers=headers)
            assert answer.status_code == 200
        refused = await lightwell.post("/v1/embeddings", {**body, "priority": min_priority - 1}, headers=headers)
        assert [each.priority for each in lightwell.engine.submitted] == [without, min_priority, 9]
    error = error_of(refused)
    assert (refused.status_code, error["param"], error["code"]) == (400, "priority", "priority_not_allowed")
    assert f"priority: {min_priority - 1} is earlier than the API key 'alice' may go" in error["message"]
    assert f"at least {min_priority} is accepted" in error["message"]


async def test_a_key_without_a_priority_of_its_own_may_what_everybody_may(tmp_path: Path) -> None:
    body, headers = {"input": "abc", "priority": -1}, {"authorization": "Bearer bob"}
    file = write_keys(tmp_path, alice="min_priority = -5", bob="")
    for allow_priority, status in ((False, 400), (True, 200)):
        async with site(tmp_path, api_key_file=file, allow_priority=allow_priority) as lightwell:
            assert (await lightwell.post("/v1/embeddings", body, headers=headers)).status_code == status


async def test_a_queue_that_text_fills_refuses_no_look_early(tmp_path: Path) -> None:
    engine = engine_of()
    engine.full_of_text = QueueFull("The queue is full.", code="queue_full", retry_after=7)
    async with at_site(tmp_path, engine) as lightwell:
        statuses = {path: (await lightwell.post(path, body)).status_code for path, body in ROUTES.items()}
    texts = {"/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/embeddings"}
    texts |= {path for path in ROUTES if path.startswith("/api/")} | {*JUDGEMENTS, *SCORINGS, *CLASSIFICATIONS, SPARSE}
    texts |= {path for path in ROUTES if path.startswith(("/embed", "/generate"))} | {"/similarity", "/"}
    assert statuses == dict.fromkeys(ROUTES, 200) | dict.fromkeys(texts, 429)


async def test_a_full_queue_refuses_before_the_body_is_read_except_what_runs_nothing(tmp_path: Path) -> None:
    engine = FakeEngine(full=QueueFull("The queue is full.", code="queue_full", retry_after=7))
    file = write_keys(tmp_path, root="admin = true")
    async with site(tmp_path, engine, api_key_file=file) as lightwell:
        for path in ROUTES:
            headers = {**bearer("root"), "content-type": "application/json"}
            answer = await lightwell.http.post(path, content=b"{no json", headers=headers)
            assert (answer.status_code, answer.headers["retry-after"]) == (429, "7"), path
            assert error_of(answer)["message"] == "The queue is full."
        for path, body in RUN_NOTHING.items():
            assert (await lightwell.post(path, body, headers=bearer("root"))).status_code == 200, path
        assert (await lightwell.http.get("/v1/models", headers=bearer("root"))).status_code == 200
