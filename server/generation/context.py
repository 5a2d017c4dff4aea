"""The parts of the server that routes use, in one object. The application builds it once; routes have no state of their
own.
"""

from dataclasses import dataclass

from lightwell.server.batches.runner import BatchRunner
from lightwell.server.config.auth.keys import Keyring
from lightwell.server.config.settings import Settings
from lightwell.server.dispatch.request_context import RequestContext
from lightwell.server.generation.model_list import ModelList
from lightwell.server.http.errors import ApiError
from lightwell.server.observability.metrics import Metrics


@dataclass(frozen=True, kw_only=True)
class AppContext:
    """The parts of the running server that routes use, and the models that it serves."""

    settings: Settings
    keys: Keyring
    metrics: Metrics
    models: ModelList
    batches: BatchRunner | None = None
    """The batch jobs; None without --batch-dir."""

    def check_room(self, request_context: RequestContext, *, is_inspection: bool) -> None:
        """Raise the error of a request that no model has room for, before its body names one: Unavailable (503) or
        QueueFull (429).
        """
        first: ApiError | None = None
        for slot in self.models.slots:
            if slot.model is None:
                return
            try:
                slot.model.engine.check_room(request_context=request_context, is_inspection=is_inspection)
            except ApiError as error:
                first = first or error
            else:
                return
        if first is not None:
            raise first
