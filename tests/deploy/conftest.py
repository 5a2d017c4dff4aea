"""Ray clusters run one after the other: each of them starts several servers."""

from collections.abc import Iterator

import pytest

from tests.support.shared import alone


@pytest.fixture(scope="module")
def only_cluster() -> Iterator[None]:
    with alone("cluster"):
        yield
