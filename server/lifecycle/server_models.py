"""The models of a server: models of the settings, which are loaded at the start, and models of `--models-dir`."""

from collections.abc import Callable, Iterator, Sequence

from lightwell.server.config.settings import Settings
from lightwell.server.generation.model_list import ModelList, ModelSlot
from lightwell.server.generation.served_model import ModelFiles, ServedModel
from lightwell.server.lifecycle.greeting import Greeting
from lightwell.server.lifecycle.model_files import ModelsFolder, most_loaded, named_models
from lightwell.server.lifecycle.model_host import ModelHosts
from lightwell.server.observability.metrics import Metrics
from lightwell.server.worker.engine_worker import ENGINE_FACTORY


class ServerModels:
    """The models of one server, with their engines and metrics."""

    def __init__(
        self, settings: Settings, engine_factory: str = ENGINE_FACTORY, hosts: ModelHosts | None = None
    ) -> None:
        """Read the files of the models in the settings. Raises ValueErrors of one line.

        hosts: in an API process, the connections to the engines of the main process.
        """
        self._settings = settings
        named = named_models(settings)
        self._folder = None if settings.models_dir is None else ModelsFolder(settings)
        self._most = most_loaded(settings)
        self.metrics = Metrics(settings.metric_alias)
        if self._folder is None:
            self.metrics.name_models([each.names[0] for each in named])
        num_sharing = self._most if self._folder else min(self._most, len(named))
        self.hosts = hosts or ModelHosts(num_sharing, self._give_up, engine_factory)
        self._files: dict[ModelSlot, ModelFiles] = {}
        for each in named:
            self._files[self._slot(each.files.settings, each.names)] = each.files
        self.list = ModelList(
            list(self._files),
            self.hosts,
            scan=None if self._folder is None else self._scan,
            most_loaded=self._most,
        )
        self.on_end: Callable[[str], None] = lambda reason: None
        """Called with the reason when no model can be served any more."""

    @property
    def names(self) -> str:
        """Return the names of the models of the settings, for people."""
        return ", ".join(name for slot in self._files for name in slot.names)

    def make_hosts(self) -> None:
        """Make the engines of the models that are loaded at the start. Raises SettingsError and ServerGaveUp."""
        for slot, files in list(self._files.items())[: self._most]:
            host = self.hosts.add(slot, slot.settings.engine_config(files.folder), files.fingerprint)
            slot.model = ServedModel.of(files, host.client, slot.metrics)
        for slot, files in self._files.items():
            slot.learn(files)

    def greetings(self, address: str) -> Sequence[Greeting]:
        """Return the greeting of each model that is loaded at the start."""
        return [
            Greeting(self._settings, slot.model, address, slot.model.engine.workers)
            for slot in self._files
            if slot.model is not None
        ]

    def _slot(self, settings: Settings, names: Sequence[str]) -> ModelSlot:
        slot = ModelSlot(settings, names, self.metrics.of_model(names[0]), root=settings.source or names[0])
        slot.metrics.watch(lambda: self.hosts.metrics(slot))
        return slot

    def _scan(self) -> Iterator[ModelSlot]:
        if self._folder is not None:
            taken = {name for slot in self._files for name in slot.names}
            for settings in self._folder.new_models():
                if settings.served_model_name not in taken:
                    yield self._slot(settings, [str(settings.served_model_name)])

    def _give_up(self, slot: ModelSlot, reason: str) -> None:
        if slot.change == "loading":
            return  # the load reports it
        if self._folder is None and all(each.state == "failed" for each in self.list.slots if each is not slot):
            self.on_end(reason)
        else:
            self.list.give_up(slot, reason)
