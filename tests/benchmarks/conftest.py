"""Scripts of benchmarks import each other by bare names: here they are modules for a while."""

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
    """Gives what imports scripts of the accuracy benchmark by their names, and forgets them."""
    return _import_accuracy
