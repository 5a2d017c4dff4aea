"""Several models in one server: the choice of a model, loading and unloading, and their limits."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from lightwell.server.generation.supported_routes import (
    CHATS,
    CLASSIFICATIONS,
    EMBEDDINGS,
    INSPECTIONS,
    ROUTES_OF_A_HEAD,
    SCORINGS,
    SPARSE,
)
from lightwell.server.http.errors import QueueFull
from tests.readme import ROOT
from tests.server.dialects.routes import ROUTES
from tests.server.dialects.test_admin import bearer, write_keys
from tests.server.fake_client import FakeEngine
from tests.server.serving import error_of, listening
from tests.server.several_models import several, until

ALL = ("labels", "rerank", "embed", "sparse", "text", "chat")
OF_ANY_MODEL = (*(route for route in INSPECTIONS if route not in ROUTES_OF_A_HEAD), "/")
KIND_OF = {
    **dict.fromkeys(ROUTES, "text"),
    **dict.fromkeys(CHATS, "chat"),
    **dict.fromkeys(EMBEDDINGS, "embed"),
    **dict.fromkeys(SCORINGS, "rerank"),
    **dict.fromkeys(CLASSIFICATIONS, "labels"),
    **dict.fromkeys(OF_ANY_MODEL, ALL[0]),
    SPARSE: "sparse",
}
"""The kind of the model that answers each route without a name."""


@pytest.mark.parametrize("path", ROUTES)
async def test_a_request_without_a_name_gets_the_first_model_of_the_right_kind(path: str, tmp_path: Path) -> None:
    async with several(tmp_path, *ALL, "chat-2", "text-2", "embed-2") as at:
        await at.site.post(path, ROUTES[path])
        assert at.loaded == {KIND_OF[path]}


async def test_a_request_chooses_its_model_by_name_and_the_answer_repeats_the_name(tmp_path: Path) -> None:
    async with several(tmp_path, "text", ("org/text-2", "my:alias")) as at:
        for name in ("org/text-2", "my:alias", "text"):
            assert (await at.complete(name)).json()["model"] == name
        assert (await at.site.post("/api/generate", {"model": "my:alias", "prompt": "a", "stream": False})).json()[
            "model"
        ] == "my:alias"
        assert at.loader.num_loads == {"org/text-2": 1, "text": 1}, "two names of one model share it"
        wrong = error_of(await at.complete("other"))
    assert wrong["message"] == "The model 'other' does not exist here; 'text', 'org/text-2', 'my:alias' are served."


async def test_first_requests_at_the_same_moment_cause_one_load(tmp_path: Path) -> None:
    async with several(tmp_path, "text", "embed") as at:
        gate = at.loader.gates["text"] = asyncio.Event()
        tasks = [asyncio.create_task(at.complete("text")) for _ in range(20)]
        await until(lambda: at.models.slot("text").num_waiting == 20)
        assert (await at.states()) == {"text": "loading", "embed": "unloaded"}
        gate.set()
        assert {each.status_code for each in await asyncio.gather(*tasks)} == {200}
        assert at.loader.num_loads == {"text": 1}


async def test_a_request_that_waits_for_a_model_ends_at_its_deadline_and_the_load_goes_on(tmp_path: Path) -> None:
    async with several(tmp_path, "text") as at:
        gate = at.loader.gates["text"] = asyncio.Event()
        late = await at.complete("text", timeout=0.05)
        assert (late.status_code, error_of(late)["code"]) == (504, "deadline_exceeded")
        gate.set()
        assert (await at.complete("text")).status_code == 200
        assert at.loader.num_loads == {"text": 1}


async def test_a_client_that_leaves_while_it_waits_does_not_keep_the_model_loaded(tmp_path: Path) -> None:
    async with several(tmp_path, "text", "embed", most_loaded=1) as at, listening(at.site) as url:
        gate, slot = asyncio.Event(), at.models.slot("text")
        at.loader.gates["text"] = gate
        async with httpx.AsyncClient(timeout=None) as client:
            body = {"model": "text", "prompt": "ab", "max_tokens": 2}
            task = asyncio.create_task(client.post(f"{url}/v1/completions", json=body))
            await until(lambda: slot.num_waiting and at.loader.num_loads)
            task.cancel()
            await asyncio.wait([task])
        gate.set()
        await until(lambda: slot.state == "loaded" and not slot.num_waiting and not slot.num_users)
        assert (await at.site.post("/v1/embeddings", {"model": "embed", "input": "a"})).status_code == 200
        assert at.loaded == {"embed"}


@pytest.mark.parametrize("failure", [ValueError("no weights for lm_head."), OSError("disk full"), KeyError("a")])
async def test_a_failed_load_is_explained_and_not_repeated_by_requests(failure: Exception, tmp_path: Path) -> None:
    """Any error, of a kind that readers raise or of one that they never should, ends every request that waits."""
    async with several(tmp_path, "text", "embed") as at:
        at.loader.failures["text"] = failure
        answers = await asyncio.gather(*(at.complete("text") for _ in range(3)))
        answers.append(await at.complete("text"))
        for answer in answers:
            assert answer.status_code == 503
            assert int(answer.headers["retry-after"]) in range(55, 62)
            error = error_of(answer)
            assert error["code"] == "model_not_loaded"
            assert f"'text' cannot be loaded: {str(failure).rstrip('.')}. The server tries again in" in error["message"]
        assert at.loader.num_loads == {"text": 1}
        assert (await at.site.post("/v1/embeddings", {"input": "a"})).status_code == 200
        assert await at.states() == {"text": "failed", "embed": "loaded"}
        assert (await at.site.http.get("/health/ready")).status_code == 200

        again = await at.site.post("/models/load", {"model": "text"})
        assert (again.status_code, at.loader.num_loads["text"]) == (503, 2)
        del at.loader.failures["text"]
        assert (await at.site.post("/models/load", {"model": "text"})).json() == {"success": True}
        assert (await at.complete("text")).status_code == 200


@pytest.mark.parametrize("failure", [ValueError("config.json: no model_type"), RecursionError()])
async def test_a_model_whose_files_cannot_be_read_does_not_hide_the_next_of_its_kind(
    failure: Exception, tmp_path: Path
) -> None:
    async with several(tmp_path, "embed", "text", "text-2") as at:
        at.loader.unreadable["text"] = failure
        assert (await at.complete(None)).json()["model"] == "text-2"
        message = error_of(await at.complete("text"))["message"]
        assert f"cannot be loaded: {str(failure) or 'RecursionError'}. The server" in message


async def test_the_model_that_was_unused_for_the_longest_time_goes(tmp_path: Path) -> None:
    async with several(tmp_path, "text-1", "text-2", "text-3", most_loaded=2) as at:
        for name in ("text-1", "text-2", "text-1", "text-3"):
            assert (await at.complete(name)).status_code == 200
        assert at.loaded == {"text-1", "text-3"}


async def test_requests_for_many_models_at_the_same_moment_load_no_more_than_the_limit(tmp_path: Path) -> None:
    names = [f"text-{number}" for number in range(6)]
    async with several(tmp_path, *names, most_loaded=2) as at:
        gate = asyncio.Event()
        at.loader.gates = dict.fromkeys(names, gate)
        tasks = [asyncio.create_task(at.complete(name)) for name in [*names, *names]]
        await until(lambda: at.loader.num_loads and all(at.models.slot(name).num_waiting == 2 for name in names))
        gate.set()
        assert {(await task).status_code for task in tasks} == {200}
        assert sum(at.loader.num_loads.values()) <= 10
        assert len(at.loaded) == 2


async def test_an_idle_model_goes_before_one_that_is_in_use(tmp_path: Path) -> None:
    async with several(tmp_path, "text-1", "text-2", "text-3", most_loaded=2) as at:
        await at.complete("text-1")
        gate = asyncio.Event()
        task = await at.running("text-1", gate)
        await at.complete("text-2")
        await at.complete("text-3")
        assert at.loaded == {"text-1", "text-3"}
        gate.set()
        assert (await task).status_code == 200


async def test_a_running_request_is_never_ended_by_unloading(tmp_path: Path) -> None:
    async with several(tmp_path, "text-1", "text-2", most_loaded=1) as at:
        await at.complete("text-1")
        gate = asyncio.Event()
        running = await at.running("text-1", gate)
        other = asyncio.create_task(at.complete("text-2"))
        await until(lambda: at.models.slot("text-1").state == "unloading")
        same = asyncio.create_task(at.complete("text-1"))
        await until(lambda: at.models.slot("text-1").num_waiting)
        assert (at.loaded, other.done(), running.done()) == ({"text-1"}, False, False)
        gate.set()
        assert [(await each).status_code for each in (running, other, same)] == [200, 200, 200]
        assert at.loader.num_loads == {"text-1": 2, "text-2": 1}


async def test_a_request_that_means_two_models_does_not_wait_for_itself(tmp_path: Path) -> None:
    """POST / looks at the first model, and the model of the meant route may need its place."""
    body = {"inputs": {"source_sentence": "a", "sentences": ["b"]}, "timeout": 20}
    async with several(tmp_path, "text", "embed", most_loaded=1) as at:
        assert (await at.site.post("/", body)).status_code == 200
        assert at.loaded == {"embed"}


async def test_the_loads_of_one_keys_requests_are_limited(tmp_path: Path) -> None:
    async with several(tmp_path, "text-1", "text-2", most_loaded=1, api_key=("a", "b")) as at:

        async def load(key: str, number: int) -> Any:
            body = {"model": f"text-{1 + number % 2}", "prompt": "a", "max_tokens": 1}
            return await at.site.post("/v1/completions", body, headers=bearer(key))

        answers = [await load("a", number) for number in range(11)]
        assert [each.status_code for each in answers] == [200] * 10 + [429]
        assert error_of(answers[-1])["code"] == "too_many_loads"
        assert 0 < int(answers[-1].headers["retry-after"]) <= 60
        assert (await load("a", 1)).status_code == 200, "the loaded model answers"
        assert (await load("b", 0)).status_code == 200, "another key has its own limit"


async def test_unloading_waits_for_running_requests(tmp_path: Path) -> None:
    async with several(tmp_path, "org/text", "embed") as at:
        await at.complete("org/text")
        gate = asyncio.Event()
        running = await at.running("org/text", gate)
        unloads = [asyncio.create_task(at.site.post("/models/unload", {"model": "org/text"})) for _ in range(2)]
        await until(lambda: at.models.slot("org/text").state == "unloading")
        gate.set()
        assert (await running).status_code == 200
        assert [(await each).json() for each in unloads] == [{"success": True}] * 2
        assert at.loaded == set()
        assert (await at.complete("org/text")).status_code == 200


async def test_a_model_given_up_while_it_is_unloaded_is_loaded_once_by_the_next_request(tmp_path: Path) -> None:
    async with several(tmp_path, "text", "embed") as at:
        await at.complete("text")
        gate = asyncio.Event()
        running = await at.running("text", gate)
        slot = at.models.slot("text")
        unload = asyncio.create_task(at.models.unload(slot))
        await until(lambda: slot.state == "unloading")
        at.models.give_up(slot, "the worker ended 5 times")
        waiting = asyncio.create_task(at.models.load(slot))
        gate.set()
        await asyncio.gather(running, unload, waiting)
        assert at.loader.num_loads == {"text": 2}
        assert (await at.complete("text")).status_code == 200


async def test_a_model_given_up_is_named_and_the_others_answer(tmp_path: Path) -> None:
    async with several(tmp_path, "text", "embed") as at:
        await at.complete("text")
        at.models.give_up(at.models.slot("text"), "the worker ended 5 times, last by SIGKILL")
        error = error_of(await at.complete("text"))
        assert "'text' cannot be loaded: the worker ended 5 times, last by SIGKILL." in error["message"]
        assert (await at.site.post("/v1/embeddings", {"input": "a"})).status_code == 200
        assert await at.states() == {"text": "failed", "embed": "loaded"}


async def test_only_admins_load_and_unload_where_there_are_keys(tmp_path: Path) -> None:
    file = write_keys(tmp_path, root="admin = true", guest="")
    async with several(tmp_path, "org/text", "embed", api_key_file=file) as at:
        posts = [f"/admin/models/org/text/{verb}" for verb in ("load", "unload")]
        for path in (*posts, "/models/load", "/models/unload"):
            body = None if path in posts else {"model": "org/text"}
            statuses = [(await at.site.post(path, body, headers=bearer(key))).status_code for key in ("guest", "root")]
            assert statuses == [403, 200], path
        await at.site.post(posts[0], headers=bearer("root"))
        listed = await at.site.http.get("/admin/models", headers=bearer("root"))
        assert listed.json()["data"][0] == {
            "id": "org/text",
            "names": ["org/text"],
            "root": "/models/text",
            "state": "loaded",
            "reason": "ready",
            "requests_in_flight": 0,
        }
        assert (await at.site.http.get("/admin/models", headers=bearer("guest"))).status_code == 403
        unknown = await at.site.post("/admin/models/nothing/load", headers=bearer("root"))
        assert (unknown.status_code, error_of(unknown)["code"]) == (404, "model_not_found")


async def test_the_only_model_of_a_server_stays_loaded(plain: Any) -> None:
    error = await plain.error("/models/unload", {"model": "org/tiny"}, 400)
    assert error["message"] == "The model 'org/tiny' is the only model of this server and stays loaded."


async def test_models_are_listed_with_their_states_purposes_and_adapters(tmp_path: Path) -> None:
    settings = {"chat": {"lora": (("tuned", "/adapters/tuned"),)}}
    async with several(tmp_path, ("chat", "alias"), "embed", settings=settings) as at:
        before = (await at.site.http.get("/v1/models")).json()["data"]
        assert [(each["id"], each["parent"], each["status"]["value"]) for each in before] == [
            ("chat", None, "unloaded"), ("alias", None, "unloaded"), ("tuned", "chat", "unloaded"),
            ("embed", None, "unloaded"),
        ]  # fmt: skip
        assert (await at.complete("tuned")).json()["model"] == "tuned"
        after = (await at.site.http.get("/models")).json()["data"]
        assert [each["id"] for each in after] == [each["id"] for each in before]
        assert (after[0]["capabilities"], after[0]["status"]) == (
            ["completion", "chat"], {"value": "loaded", "failed": False}
        )  # fmt: skip
        assert after[0]["max_model_len"] == 64
        assert after[3]["capabilities"] is None
        assert (await at.site.http.get("/v1/models/tuned")).json()["parent"] == "chat"


async def test_each_model_has_its_metrics(tmp_path: Path) -> None:
    async with several(tmp_path, "text", "text-2") as at:
        for name in ("text", "text-2", "text-2"):
            await at.complete(name)
        success = 'lightwell_request_success_total{finish_reason="length",model_name="%s"}'
        assert [await at.site.metric(success % name) for name in ("text", "text-2")] == [1, 2]
        await at.models.unload(at.models.slot("text-2"))
        assert await at.site.metric(success % "text-2") == 2
        up = 'lightwell_worker_up{model_name="%s",worker="0"}'
        assert [await at.site.metric(up % name) for name in ("text", "text-2")] == [1, 0]


async def test_a_server_that_ends_is_not_ready_and_loads_nothing(tmp_path: Path) -> None:
    async with several(tmp_path, "text") as at:
        assert (await at.site.http.get("/health/ready")).status_code == 200
        at.loader.is_draining = True
        ready = await at.site.http.get("/health/ready")
        assert (ready.status_code, ready.json()["reason"]) == (503, "draining")
        answer = await at.complete("text")
        assert (answer.status_code, error_of(answer)["code"]) == (503, "draining")


async def test_a_model_that_comes_while_the_server_runs_is_found(tmp_path: Path) -> None:
    new: list[str] = []

    def scan() -> list[str]:
        found = new.copy()
        new.clear()
        return found

    async with several(tmp_path, scan=scan) as at:
        empty = await at.complete(None)
        assert (empty.status_code, error_of(empty)["message"].partition(":")[0]) == (404, "This server has no model")
        assert (await at.complete("text")).status_code == 404
        new.append("text")
        assert (await at.complete("text")).status_code == 200
        new.append("embed")
        assert [each["id"] for each in (await at.site.http.get("/v1/models")).json()["data"]] == ["text", "embed"]


async def test_full_models_refuse_a_request_before_its_body_is_read_only_if_all_are_full(tmp_path: Path) -> None:
    async with several(tmp_path, "text", "text-2") as at:
        for name in ("text", "text-2"):
            await at.complete(name)
        engines: list[FakeEngine] = list(at.loader.engines.values())
        engines[0].full = QueueFull("full", code="queue_full", retry_after=1)
        assert (await at.complete("text-2")).status_code == 200
        engines[1].full = engines[0].full
        assert (await at.complete("text-2")).status_code == 429


async def test_the_answers_of_the_document_are_those_of_the_server(tmp_path: Path) -> None:
    document = (ROOT / "docs" / "several-models.md").read_text(encoding="utf-8")
    listed, health = (
        json.loads(re.sub(r",\s*\.\.\.", "", block)) for block in re.findall(r"```json\n(.*?)```", document, re.DOTALL)
    )
    file = write_keys(tmp_path, root="admin = true")
    async with several(tmp_path, "chat", "embed", api_key_file=file) as at:
        await at.site.post("/models/load", {"model": "chat"}, headers=bearer("root"))
        assert (await at.site.http.get("/health/ready")).json() == health
        models = (await at.site.http.get("/admin/models", headers=bearer("root"))).json()
    assert models["data"][0] == {**listed["data"][0], "root": "/models/chat"}
    for code in ("model_not_loaded", "too_many_loads", "deadline_exceeded", "draining"):
        assert f"`{code}`" in document
