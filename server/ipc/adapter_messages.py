"""Defines the messages about LoRA adapters that come and go while the server runs."""

import msgspec


class LoadAdapter(msgspec.Struct, tag="load-adapter", array_like=True, frozen=True):
    """API to worker: load the LoRA adapter in this folder; requests will name it by this number."""

    number: int
    folder: str
    root: str | None = None
    """The folder that the adapter's files must be in once links are followed; None means anywhere."""


class DropAdapter(msgspec.Struct, tag="drop-adapter", array_like=True, frozen=True):
    """API to worker: forget this adapter; requests that have begun keep it."""

    number: int


class AdapterLoaded(msgspec.Struct, tag="adapter", array_like=True, frozen=True):
    """Worker to API: the adapter is loaded, or why it cannot be served, in one line."""

    number: int
    error: str | None
