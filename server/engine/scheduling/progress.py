"""Moves sequences past a step that still runs, so that the next one can be scheduled, and back if it came to nothing.

Which tokens a step samples is known when it ends; that it samples some, and which positions it computes, is known when
it begins. It knows no queue and no block. Standard library only.
"""

from server.engine.scheduling.schedule import Schedule
from server.engine.sequence import UNKNOWN, SequenceStatus


def advance(schedule: Schedule) -> None:
    """Count the positions of a step as computed, and give each sequence that a token is sampled for one that is still
    unknown.
    """
    for seq in schedule.encodes:
        seq.encoder_is_computed = seq.encoder_is_captured = True
    for chunk in schedule.chunks:
        seq, start, num_tokens = chunk
        if seq.status is not SequenceStatus.RUNNING:
            continue
        needs_sample, end = seq.needs_sample(chunk), start + num_tokens
        seq.num_computed_tokens = end
        seq.states = seq.states[1], seq.states[0]  # what this step writes, the next one reads
        seq.captured_upto = max(seq.captured_upto, end)
        if needs_sample:
            seq.token_ids.append(UNKNOWN)


def retreat(schedule: Schedule) -> None:
    """Take back `advance` for a step whose numbers nobody will see. Nothing may have been scheduled after it."""
    for seq, start, _ in schedule.chunks:
        if seq.status is SequenceStatus.RUNNING:
            seq.num_computed_tokens = start
            seq.states = seq.states[1], seq.states[0]
        if seq.status is not SequenceStatus.FINISHED and seq.awaits_token:
            seq.token_ids.pop()
