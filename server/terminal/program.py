"""The program of a model: `lightwell program`."""

from collections.abc import Mapping

from lightwell.model.checkpoint.registry import read_config
from lightwell.model.checkpoint.resolve import resolve
from lightwell.model.loading.loader import load_model, resolve_device, resolve_dtype, resolve_quantization
from lightwell.model.network.program_text import describe
from lightwell.server.config.settings import Settings


def program_of(model: str, flags: Mapping[str, str]) -> str:
    """Return the steps of a model's network as text. flags: settings by name, as a user writes them.

    Raises SettingsError for a wrong value, and ModelLoadError for a model that cannot be loaded.
    """
    settings = Settings.from_sources(flags, {})
    folder = resolve(model, settings.gguf_file, settings.revision)
    config, device = read_config(folder), resolve_device(settings.device)
    dtype = resolve_dtype(settings.dtype, config, device)
    quantize = resolve_quantization(settings.quantize, dtype, device)
    return describe(load_model(folder, config, dtype, device, quantize=quantize))
