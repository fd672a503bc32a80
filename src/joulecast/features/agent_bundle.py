"""Bundle the device side of Joulecast as one file, which a bare Python runs.

    agent.pyz
    ├── __main__.py                 checks the version of Python and starts the agent
    ├── joulecast/                  the packages below: standard library only
    └── joulecast-….dist-info/      the version

Frameworks (PyTorch, MNN, ONNX Runtime) and the libraries of some meters are imported from the
device, where they are installed. Bundling the same version twice gives the same bytes.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from joulecast.system.files import write_atomically

DEVICE_SIDE = (
    "agent",
    "devices",
    "measurer",
    "meters",
    "mnn",
    "onnx_nets",
    "operators",
    "records",
    "runtimes",
    "simulation",
    "system",
    "torch_nets",
    "variants",
)
"""Packages and modules that an agent needs."""

_MAIN = """\
import sys

# Jetsons with JetPack 6 have Python 3.10.
if sys.version_info < (3, 10):
    sys.exit("joulecast: the agent needs Python 3.10 or later, and this is %d.%d: run it with "
             "another python3" % sys.version_info[:2])

from joulecast.agent.command import main

main()
"""
_PACKAGE = Path(__file__).parents[1]
_SHEBANG = b"#!/usr/bin/env python3\n"
# The first that a zip file can hold.
_DATE = (1980, 1, 1, 0, 0, 0)


def bundle_agent(file: str) -> int:
    """Write the agent as a zipapp and return its size in bytes."""
    packed = io.BytesIO()
    packed.write(_SHEBANG)
    with zipfile.ZipFile(packed, "a", zipfile.ZIP_DEFLATED) as archive:
        for name, content in _list_contents():
            entry = zipfile.ZipInfo(name, _DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content)
    content = packed.getvalue()
    write_atomically(content, Path(file), is_program=True)
    return len(content)


def list_device_modules() -> list[str]:
    """Return the files of the device side, relative to the package."""
    found = [path for name in DEVICE_SIDE for path in _find_modules(_PACKAGE / name)]
    return sorted(str(path.relative_to(_PACKAGE)) for path in found)


def _find_modules(path: Path) -> list[Path]:
    return list(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]


def _list_contents() -> Iterator[tuple[str, bytes]]:
    yield "__main__.py", _MAIN.encode()
    number = version("joulecast")
    metadata = f"Metadata-Version: 2.1\nName: joulecast\nVersion: {number}\n"
    yield f"joulecast-{number}.dist-info/METADATA", metadata.encode()
    for name in ("__init__.py", *list_device_modules()):
        yield f"joulecast/{name}", (_PACKAGE / name).read_bytes()
