"""The state of an engine for a debug dump: plain numbers and names, but no tokens, so no prompts."""

import os
import time
from pathlib import Path
from typing import Any

from lightwell.server.engine.scheduling.block_manager import BlockManager
from lightwell.server.engine.scheduling.capture_budget import CaptureBudget
from lightwell.server.engine.scheduling.scheduler import Scheduler
from lightwell.server.engine.sequence import Sequence

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def engine_state(scheduler: Scheduler, capture_budget: CaptureBudget | None) -> dict[str, Any]:
    """Return the queues, in order of rank, and the other counters. Sizes are tokens or blocks, times seconds."""
    now = time.monotonic()
    sequences = [sequence_state(seq, now) for seq in scheduler.sequences]
    return {
        "running": [state for state in sequences if state["status"] == "running"],
        "waiting": [state for state in sequences if state["status"] != "running"],
        "num_preemptions": scheduler.num_preemptions,
        "blocks": block_state(scheduler.block_manager),
        "capture_budget": None if capture_budget is None else capture_budget.state(),
        "memory_bytes": resident_bytes(),
    }


def sequence_state(seq: Sequence, now: float) -> dict[str, Any]:
    """Return the state of one request; `now` is CLOCK_MONOTONIC seconds."""
    deadline = seq.request.deadline
    return {
        "uid": seq.uid,
        "request_id": seq.request.request_id,
        "status": seq.status.value,
        "task": type(seq.task).__name__.removesuffix("Task").lower(),
        "priority": seq.request.priority,
        "client": seq.request.client,
        "age": round(now - seq.request.arrival_time, 3),
        "deadline_in": None if deadline is None else round(deadline - now, 3),
        "num_encoder_tokens": len(seq.encoder_token_ids),
        "num_prompt_tokens": seq.num_prompt_tokens,
        "num_known_tokens": seq.num_tokens,
        "num_computed_tokens": seq.num_computed_tokens,
        "num_cached_tokens": seq.num_cached_tokens,
        "num_blocks": len(seq.block_table) + len(seq.cross_block_table),
        "num_preemptions": seq.num_preemptions,
    }


def block_state(blocks: BlockManager) -> dict[str, Any]:
    """Return the state of the KV cache."""
    return {
        "total": blocks.num_usable_blocks,
        "held": blocks.num_usable_blocks - blocks.num_free_blocks,
        "cached": blocks.num_cached_blocks,
        "blank": blocks.num_free_blocks - blocks.num_cached_blocks,
        "block_size": blocks.block_size,
    }


def resident_bytes() -> int:
    """Return the bytes of this process that are in RAM."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
