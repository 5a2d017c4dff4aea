"""Interpreted kernels multiply in one order, because bits are compared here."""

import pytest

from lightwell.model.kernels.cuda.interpreter import IS_INTERPRETED
from tests.support.interpreted_product import multiply_in_one_order


@pytest.fixture(autouse=True)
def _interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    if IS_INTERPRETED:
        multiply_in_one_order(monkeypatch)
