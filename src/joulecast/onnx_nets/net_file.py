"""Read networks from ONNX files, each in a process with limits on memory and time.

The process is given the content of a file and opens none. It parses data from elsewhere with
libraries that are written in C++: if one of them crashes, hangs or takes too much memory, the file
is refused in one line.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joulecast.records import Network, Trial
from joulecast.records.runtime import Step
from joulecast.system.errors import FileError, NetError
from joulecast.system.files import read_limited

MOST_MODEL_BYTES = 2**30
"""Size of a model with its weights; larger ones keep their weights in files of their own."""
LIMIT_S = 120.0
"""Time for one file; a graph of 50,000 nodes takes some seconds."""

Shape = tuple[int, ...]

# Without the current folder on its path, where a module may lie that is named onnx.
_COMMAND = [sys.executable, "-P", "-m", "joulecast.onnx_nets.network"]
# One file at a time: each may take a few gigabytes.
_READING = threading.Lock()


@dataclass(frozen=True)
class OnnxNet:
    """A network that was read from an ONNX file.

    Attributes:
        batch: The batch size that was asked for, else the one that the file fixes, else the usual.
        precision: The precision that it is stored in, as a Setup names it.
        fixed_batch: The batch size that the file fixes; 0 if it leaves it open.
    """

    network: Network
    batch: int
    precision: str
    fixed_batch: int = 0


@dataclass(frozen=True)
class OnnxFile:
    """An ONNX file, as a user's own net that ONNX Runtime runs itself.

    Attributes:
        path: The file; weights that it keeps elsewhere are in its folder.
        sample: Shape of one sample, where the file leaves it open.
        loss: It has none.
    """

    path: Path
    sample: Shape | None = None
    loss: None = None

    def prepare(self, runtime: Any, trial: Trial) -> Step:
        """Return the file as a checked step of ONNX Runtime."""
        step: Step = runtime.prepare_file(self, trial)
        return step


def read_onnx_net(
    path: str | Path,
    sample: Shape | None = None,
    batch: int | None = None,
    usual_batch: int = 1,
) -> OnnxNet:
    """Return the network in an ONNX file. No other file is opened, and no weight is needed.

    Args:
        path: The file.
        sample: Shape of one sample of the first input, where the file leaves sizes open.
        batch: Batch size of the step that is counted; by default the one that the file fixes.
        usual_batch: Batch size where the file leaves it open.

    Raises:
        FileError: The file is missing, damaged, inconsistent, or not an ONNX model.
        NetError: Sizes are missing, or differ from those in the file.
    """
    path = Path(path)
    content = read_limited(path, MOST_MODEL_BYTES)
    return _read(content, (path.stem, str(path), sample, batch, usual_batch))


def read_onnx_content(content: bytes, name: str, sample: Shape | None = None) -> OnnxNet:
    """Return the network in the content of an ONNX file, as ``read_onnx_net`` does.

    ``name`` is that of the network, and what messages call the file.
    """
    return _read(content, (name, name, sample))


def _read(content: bytes, options: tuple[Any, ...]) -> OnnxNet:
    """Let another process call ``read_network`` with these options, name and place first."""
    request, place = json.dumps(options).encode() + b"\n" + content, options[1]
    try:
        with _READING:
            done = subprocess.run(
                _COMMAND, input=request, capture_output=True, timeout=LIMIT_S, check=False
            )
        # Libraries may have printed something before.
        found = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.TimeoutExpired, LookupError, ValueError) as error:
        raise FileError(
            f"{place} cannot be read: the reader crashed, or needed more than {LIMIT_S:.0f} s: "
            "export the net again"
        ) from error
    if "error" in found:
        raise (NetError if found["error"] == "NetError" else FileError)(found["message"])
    return OnnxNet(**{**found, "network": Network.from_dict(found["network"])})
