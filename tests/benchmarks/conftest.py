"""Import benchmark scripts, which import each other by bare names, for the time of a test."""

from __future__ import annotations

import importlib
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from joulecast.system.plugins import load_plugins

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"


@contextmanager
def import_scripts(folder: str, *names: str) -> Iterator[Namespace]:
    """Import scripts of one benchmark, with the rivals installed as a plug-in."""
    paths = [str(ROOT), str(BENCHMARKS / "rivals")]
    prefix = "" if folder == "rivals" else "benchmarks."
    before = set(sys.modules)
    sys.path[:0] = paths
    load_plugins.cache_clear()
    try:
        yield Namespace(**{name: importlib.import_module(prefix + name) for name in names})
    finally:
        for path in paths:
            sys.path.remove(path)
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None) or ""
            if file.startswith(str(BENCHMARKS)):
                del sys.modules[name]
        load_plugins.cache_clear()


@pytest.fixture(scope="module")
def scripts(request):
    """Return the scripts that the test module names in ``SCRIPTS``: a folder, then modules."""
    with import_scripts(*request.module.SCRIPTS) as found:
        yield found
