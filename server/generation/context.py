"""The parts of the server that routes use, in one object. The application builds it once; routes have no state of their
own.
"""

from dataclasses import dataclass

from lightwell.server.config.auth.keys import Keyring
from lightwell.server.config.settings import Settings
from lightwell.server.dispatch.served_adapter import ServedAdapter
from lightwell.server.generation.served_model import ServedModel
from lightwell.server.http.errors import NotFound, shown
from lightwell.server.observability.metrics import Metrics

PLACEHOLDERS = ("tgi", "dummy", "text-embeddings-inference")
"""Placeholder model names of TGI's and TEI's clients; they mean the one model."""


@dataclass(frozen=True, kw_only=True)
class AppContext:
    """The parts of the running server that routes use, and the model that it serves."""

    settings: Settings
    keys: Keyring
    metrics: Metrics
    model: ServedModel

    def find(self, name: str | None) -> tuple[ServedModel, ServedAdapter | None]:
        """Return the model with this name, or the model and its LoRA adapter with this name. None means the model
        itself.

        Raises NotFound.
        """
        model = self.model
        if name is None or name == model.id:
            return model, None
        adapter = model.adapters.find(name)
        if adapter is None and name not in PLACEHOLDERS:
            names = [model.id, *(each.name for each in model.adapters)]
            served = f"{names[0]!r} is served" if len(names) == 1 else f"{', '.join(map(repr, names))} are served"
            message = f"The model {shown(name)} does not exist here; {served}."
            raise NotFound(message, param="model", code="model_not_found")
        return model, adapter
