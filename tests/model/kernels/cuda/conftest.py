"""Interpreted kernels multiply in one order, because bits are compared here, and take a third less time."""

import pytest

from lightwell.model.kernels.cuda.interpreter import IS_INTERPRETED
from tests.support.interpreted_product import multiply_in_one_order
from tests.support.interpreted_triton import patch_the_language_once


@pytest.fixture(autouse=True)
def _interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    if IS_INTERPRETED:
        multiply_in_one_order(monkeypatch)
        patch_the_language_once(monkeypatch)
