"""Let only one campaign run on a device at a time.

The lock is a file in the user's cache folder, named after the device and the machine. The operating
system releases it when the process dies, however that happens. A process that inherits the open
file keeps it: a worker that outlives its parent still uses the device.
"""

from __future__ import annotations

import os
import platform
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from joulecast.records.codec import stable_hash
from joulecast.system.errors import MeasurementError

try:
    import fcntl
except ImportError:  # not on Windows, where campaigns are not locked
    fcntl = None  # type: ignore[assignment]

# Seldom enough not to disturb the process that measures.
_RETRY_S = 1.0


@contextmanager
def hold_device(
    device: str | None, name: str = "", folder: Path | None = None, wait_s: float = 0.0
) -> Iterator[int | None]:
    """Hold the lock of a device; yield the file to pass on to other processes, None without one.

    Args:
        device: Identifies the device on this machine; None for one that is not locked.
        name: What messages call it.
        folder: Folder of the locks; by default in the user's cache folder.
        wait_s: How long to wait while another process holds it.

    Raises:
        MeasurementError: Another campaign runs on the device.
    """
    if fcntl is None or device is None:
        yield None
        return
    # Homes may be shared by several machines.
    path = (folder or _find_folder()) / f"{stable_hash([platform.node(), device])}.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:  # as on a read-only disk
        yield None
        return
    try:
        give_up_s = time.monotonic() + wait_s
        while not _lock(descriptor):
            if time.monotonic() >= give_up_s:
                pid = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
                raise MeasurementError(
                    f"another campaign is running on {name or device} (process {pid}): wait until "
                    "it ends, or stop it; what it measured is stored"
                )
            time.sleep(min(_RETRY_S, wait_s))
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield descriptor
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """Lock a file; return whether nobody else holds it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _find_folder() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        folder = cache if cache.is_absolute() else Path.home() / ".cache"
    except RuntimeError:
        folder = Path(tempfile.gettempdir())
    return folder / "joulecast" / "locks"


# Errors after which every further call of the process fails.
_LOST = ("cuda error", "cuda runtime error", "device-side assert")


def is_device_lost(error: BaseException | None) -> bool:
    """Return whether an error, or what caused it, makes every further call of the process fail."""
    while error is not None:
        text = str(error).lower()
        if any(part in text for part in _LOST) and "out of memory" not in text:
            return True
        error = error.__cause__
    return False
