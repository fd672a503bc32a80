"""Read networks from ONNX files, in a worker process with limits on memory and time.

The worker is given the content of a file and opens none. It parses data from elsewhere with
libraries that are written in C++: if one of them crashes, hangs or takes too much memory, the
worker is replaced, and the file is refused in one line.
"""

from __future__ import annotations

import atexit
import json
import struct
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joulecast.records import Network
from joulecast.system.errors import FileError, NetError
from joulecast.system.files import read_limited

MOST_MODEL_BYTES = 2**30
"""Size of a model with its weights; larger ones keep their weights in files of their own."""
LIMIT_S = 120.0
"""Time for one file; a graph of 50,000 nodes takes some seconds."""

Shape = tuple[int, ...]

_LENGTH = struct.Struct("<Q")
# Without the current folder on its path, where a module may lie that is named onnx.
_COMMAND = [sys.executable, "-P", "-m", "joulecast.onnx_nets.worker"]


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
    options = {"sample": sample, "batch": batch, "usual_batch": usual_batch}
    return _WORKER.read(read_limited(path, MOST_MODEL_BYTES), path.stem, str(path), options)


def read_onnx_content(content: bytes, name: str, sample: Shape | None = None) -> OnnxNet:
    """Return the network in the content of an ONNX file; no file is opened.

    Args:
        content: The whole file.
        name: Name of the network, which messages show as well.
        sample: Shape of one sample of the first input, where the file leaves sizes open.

    Raises:
        FileError: The content is damaged, inconsistent, or not an ONNX model.
        NetError: Sizes are missing, or differ from those in the file.
    """
    return _WORKER.read(content, name, name, {"sample": sample})


def read_message(stream: Any) -> bytes:
    """Return the next message of a stream; empty at its end."""
    header = stream.read(_LENGTH.size)
    if len(header) < _LENGTH.size:
        return b""
    content: bytes = stream.read(_LENGTH.unpack(header)[0])
    return content


def write_message(stream: Any, content: bytes) -> None:
    """Write a message, with its length before it."""
    stream.write(_LENGTH.pack(len(content)))
    stream.write(content)
    stream.flush()


class _Worker:
    """A process that reads one file after another; it starts with the first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def read(self, content: bytes, name: str, place: str, options: dict[str, Any]) -> OnnxNet:
        request = json.dumps({"name": name, "place": place, **options}).encode()
        with self._lock:
            process = self._process = self._process or self._start()
            timer = threading.Timer(LIMIT_S, process.kill)
            timer.start()
            try:
                write_message(process.stdin, request)
                write_message(process.stdin, content)
                reply = read_message(process.stdout)
            except BrokenPipeError:
                reply = b""
            finally:
                timer.cancel()
            if not reply:
                self.stop()
                raise FileError(
                    f"{place} cannot be read: the reader crashed, or needed more than "
                    f"{LIMIT_S:.0f} s: export the net again"
                )
        found = json.loads(reply)
        if "error" in found:
            raise (NetError if found["error"] == "NetError" else FileError)(found["message"])
        network = Network.from_dict(found["network"])
        return OnnxNet(network, found["batch"], found["precision"], found["fixed_batch"])

    def stop(self) -> None:
        """End the process; the next file starts another."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            _COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )


_WORKER = _Worker()
atexit.register(_WORKER.stop)
