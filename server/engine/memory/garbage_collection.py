"""When Python looks for garbage: not while a process starts, and then not among what it has made until then."""

import gc

from server.engine.memory.memory_limit import give_back_memory


def freeze_garbage() -> None:
    """Begin to look for garbage, but never again among the objects that live now, and give back to the kernel the
    memory that making them took.

    A process that has started calls this once. Its objects stay for good, and looking through them (importing torch
    alone makes some 10^5) would halt a step.
    """
    gc.collect()
    gc.freeze()
    gc.enable()
    give_back_memory()
