"""Inspection methods as Calls: the route, the options and the result of each.

They request safetensors: exact, and a fraction of JSON's size. Each is declared next to its result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic

from lightwell_client._arrays import require_numpy
from lightwell_client._calls import body_of, num_inputs
from lightwell_client._inspection_result import L, parse_inspections
from lightwell_client._wire import JSON, SAFETENSORS, Answer, Call

ACCEPT = f"{SAFETENSORS}, {JSON};q=0.1"


@dataclass(frozen=True, slots=True)
class Inspection(Generic[L]):
    """One method that looks inside."""

    name: str
    """The route: POST /v1/NAME."""
    result: type[L]
    options: type
    """A TypedDict of the keyword arguments."""
    is_joint: bool = False
    """Whether there is one result for all inputs together, not one for each."""

    def call(self, model: str | None, options: Mapping[str, Any], **fields: Any) -> Call[list[L]]:
        """Return the call: `fields`, then the caller's `options` over them.

        Raises:
            MissingDependency: numpy is not installed (raised before the request is sent).
            TypeError: an option that the method does not have, or an input that is no text and no token ids.
            ValueError: an intervention's value is no array of real numbers.
        """
        require_numpy(f"{self.name}()")
        body = body_of({"model": model, **fields}, options, self.options)
        count = num_inputs(body["input"]) if "input" in body and not self.is_joint else 1

        def parse(answer: Answer) -> list[L]:
            return [result.asked_for(body) for result in parse_inspections(answer, self.result, count)]

        return Call("POST", f"/v1/{self.name}", parse, body, ACCEPT, options)
