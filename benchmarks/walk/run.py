"""Trace one question through the code: how many functions, modules and types does it cross?

    python benchmarks/walk/run.py estimate cnn5 --device nvidia-h200
    python benchmarks/walk/run.py profile cnn5 --on simulated:7 --points 5

The command line runs in this process under a profile hook. A function counts once, however often it
is called; comprehensions, lambdas and what runs while a module is imported do not count. A type is
a class of Joulecast whose instances were created on the way.
"""

import gc
import io
import json
import os
import sys
import tempfile
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from types import FrameType
from typing import Any

PACKAGE = "joulecast"


def trace(arguments: list[str]) -> dict[str, Any]:
    """Run a command line and return what it crossed."""
    functions: set[tuple[str, str]] = set()
    types: set[str] = set()

    importing = 0

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal importing
        if frame.f_code.co_name == "<module>":
            importing += {"call": 1, "return": -1}.get(event, 0)
        module = frame.f_globals.get("__name__", "")
        if event != "call" or importing or not module.startswith(PACKAGE):
            return
        name = frame.f_code.co_qualname
        if "<" not in name.rpartition(".")[2]:
            functions.add((module, name))
        if frame.f_code.co_name == "__init__":
            types.add(type(frame.f_locals["self"]).__qualname__)

    before = set(sys.modules)
    from joulecast.cli.main import cli

    output = io.StringIO()
    sys.setprofile(note)
    try:
        with redirect_stdout(output), redirect_stderr(output), suppress(SystemExit):
            cli.main(arguments, prog_name=PACKAGE)
    finally:
        sys.setprofile(None)
    gc.collect()
    imported = {name for name in set(sys.modules) - before if name.startswith(PACKAGE)}
    by_module = Counter(module for module, _ in functions)
    return {
        "command": " ".join(arguments),
        "functions": len(functions),
        "modules": len(by_module),
        "imported": len(imported),
        "types": sorted(types),
        "functions_by_module": dict(by_module.most_common()),
        "names": sorted(f"{module}:{name}" for module, name in functions),
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("JOULECAST_STORE", str(Path(folder) / "store.sqlite"))
        found = trace(sys.argv[1:])
    print(json.dumps(found, indent=2))
    print(
        f"{found['functions']} functions in {found['modules']} modules "
        f"({found['imported']} imported), {len(found['types'])} types",
        file=sys.stderr,
    )
