"""Interventions of a request body as the engine takes them: names, indices and shapes checked, sources captured."""

from collections.abc import Sequence

from server.engine.request import Intervention
from server.routes.context import AppContext
from server.routes.prompts import Prompt
from server.schemas.interventions import InterventionField


async def read_interventions(
    context: AppContext, items: Sequence[InterventionField] | None, prompt: Prompt
) -> tuple[Intervention, ...]:
    """The interventions for one input. Values from other inputs are captured first, by traces through the engine.

    Raises BadRequest for what the model, the input or the point's shape does not allow; ApiError when a trace fails.
    """
    raise NotImplementedError
