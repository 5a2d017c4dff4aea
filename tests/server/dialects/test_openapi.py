"""The OpenAPI description is complete, and the server behaves as it describes."""

import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from lightwell.server.generation.supported_routes import (
    CLASSIFICATIONS,
    ROUTES_OF_A_DECODER,
    ROUTES_OF_A_HEAD,
    ROUTES_OF_ANY_MODEL,
    SCORINGS,
    SPARSE,
)
from lightwell.server.http.error_shapes import shape_of
from lightwell.server.http.errors import BadRequest
from tests.server.dialects.looks import engine_of
from tests.server.dialects.routes import LOADING, ROUTES, RUN_NOTHING
from tests.server.dialects.test_admin import bearer, write_keys
from tests.server.serving import build_site, site

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its imports warn about its own dependencies
    import schemathesis


AN_ERROR = BadRequest("what happened")


def looks_like(value: Any) -> Any:
    """Return the fields of an object and of those in it."""
    return {key: looks_like(item) for key, item in value.items()} if isinstance(value, dict) else None


async def test_every_operation_and_field_is_described(tmp_path: Path) -> None:
    async with site(tmp_path, api_key_file=write_keys(tmp_path, root="admin = true")) as at:
        schema = (await at.http.get("/openapi.json", headers=bearer("root"))).json()
    posts = {path for path, operations in schema["paths"].items() if "post" in operations}
    assert posts == ROUTES.keys() | RUN_NOTHING.keys() | LOADING
    by_model = (*ROUTES_OF_A_DECODER, *ROUTES_OF_A_HEAD, *ROUTES_OF_ANY_MODEL, *SCORINGS, *CLASSIFICATIONS, SPARSE)
    assert ROUTES.keys() == set(by_model)
    assert "/admin/keys" in schema["paths"]
    names = [name for each in schema["paths"]["/v1/messages"]["post"]["security"] for name in each]
    schemes = [schema["components"]["securitySchemes"][name] for name in names]
    assert [(scheme["type"], scheme.get("name")) for scheme in schemes] == [("http", None), ("apiKey", "x-api-key")]
    for path, operations in schema["paths"].items():
        for operation in operations.values():
            assert operation["summary"], path
            assert operation["description"], path
            assert "422" not in operation["responses"], path
    requests = [name for name in schema["components"]["schemas"] if name.endswith("Request")]
    assert len(requests) >= 14
    for name in requests:
        for field, description in schema["components"]["schemas"][name]["properties"].items():
            assert description.get("description"), f"{name}.{field}"


@pytest.mark.filterwarnings("ignore")  # schemathesis and its dependencies warn about themselves
@pytest.mark.parametrize(
    ("mode", "max_examples"),
    [
        (schemathesis.GenerationMode.POSITIVE, 2),
        (schemathesis.GenerationMode.NEGATIVE, 1),  # wrong bodies are slow to draw, and test_bad_input.py has many
        *(pytest.param(mode, 12, marks=pytest.mark.nightly) for mode in schemathesis.GenerationMode),
    ],
)
def test_no_input_that_the_schema_allows_or_forbids_is_a_server_error(
    mode: Any, max_examples: int, tmp_path: Path
) -> None:
    engine = engine_of()
    at = build_site(tmp_path, engine, config=engine.model_config)
    schema = schemathesis.openapi.from_asgi("/openapi.json", at.app)

    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.method != "post":  # nothing can be wrong with a GET that has no parameters
            continue

        @settings(max_examples=max_examples, derandomize=True, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy(generation_mode=mode))
        def check(case: Any) -> None:
            answer = case.call()
            # A timeout that is too short for this machine is valid too.
            is_late = answer.status_code == 504 and case.body["timeout"] < 60
            assert answer.status_code < 500 or is_late, (case.method, case.path, case.body, answer.text)
            if answer.status_code >= 400:
                assert looks_like(answer.json()) == looks_like(shape_of(case.path, case.body)(AN_ERROR, "req-1"))

        check()
