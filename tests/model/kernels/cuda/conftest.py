"""Interpreted kernels multiply in one order: here bits are compared."""

import pytest

from tests.support.interpreted_product import multiply_in_one_order


@pytest.fixture(autouse=True)
def _one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    multiply_in_one_order(monkeypatch)
