"""Stored deadlines are returned in order of time, for any order of their requests."""

import itertools

from server.engine.scheduling.deadlines import Deadlines
from tests.server.engine.toy_runner import sequence


def test_the_deadlines_that_are_kept_expire_in_order() -> None:
    for order in itertools.permutations((10.0, 20.0, 30.0, 40.0)):
        deadlines = Deadlines()
        deadlines.add(sequence(9, range(4), deadline=5.0))
        deadlines.keep([sequence(uid, range(4), deadline=deadline) for uid, deadline in enumerate(order)])
        assert deadlines.next == 10.0
        assert [deadline for deadline, _ in deadlines.take_expired(25.0)] == [10.0, 20.0]
        assert [deadline for deadline, _ in deadlines.take_expired(40.0)] == [30.0, 40.0]
        assert deadlines.next is None
