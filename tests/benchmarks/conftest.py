"""Import benchmark scripts, which import each other by bare names, for the time of a test."""

from __future__ import annotations

import importlib
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ACCURACY = Path(__file__).parents[2] / "benchmarks" / "accuracy"


@contextmanager
def _import_accuracy(*names: str) -> Iterator[Namespace]:
    sys.path.insert(0, str(ACCURACY))
    try:
        yield Namespace(**{name: importlib.import_module(name) for name in names})
    finally:
        sys.path.remove(str(ACCURACY))
        for name in names:
            sys.modules.pop(name, None)


@pytest.fixture(scope="session")
def import_accuracy():
    """Return a context manager that imports scripts of the accuracy benchmark by name."""
    return _import_accuracy
