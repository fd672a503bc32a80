"""Find the AMD GPUs of a machine in the files of their driver, in the order of HIP.

    class/kfd/kfd/topology/nodes/*/properties     processors and GPUs, as ROCm numbers them
    class/drm/renderD128/device                   product name, memory and power limit of a GPU

PyTorch for ROCm calls them ``cuda:0``, ``cuda:1`` …, those that HIP_VISIBLE_DEVICES shows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

_NODES = "class/kfd/kfd/topology/nodes"
# HIP reads the first of them that is set.
_VISIBLE = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")


class AmdGpu(NamedTuple):
    """What the driver tells about a GPU.

    Attributes:
        name: Product name, or that of its architecture where the card has none: ``AMD gfx942``.
        memory_bytes: Its own memory; 0 if it is unknown.
        limit_w: The power limit that is in force; 0 if it is unknown.
        unique_id: Identifies the card; empty if it has none.
    """

    name: str
    memory_bytes: int
    limit_w: float
    unique_id: str


def list_amd_gpus(system: Path, environ: Mapping[str, str]) -> list[AmdGpu]:
    """Return the GPUs that programs see, in the order in which they see them.

    Args:
        system: Folder in which Linux describes devices.
        environ: Contains HIP_VISIBLE_DEVICES.
    """
    gpus = list(_find_gpus(system))
    visible = next((environ[name] for name in _VISIBLE if name in environ), None)
    if visible is None:
        return gpus
    numbers = [int(part) if part.strip().isdecimal() else -1 for part in visible.split(",")]
    # HIP stops at the first number that does not exist.
    valid = [0 <= number < len(gpus) for number in numbers]
    return [gpus[number] for number in numbers[: (*valid, False).index(False)]]


def _find_gpus(system: Path) -> Iterator[AmdGpu]:
    nodes = (system / _NODES).glob("[0-9]*")
    for node in sorted(nodes, key=lambda path: int(path.name)):
        properties = dict(re.findall(r"^(\w+) (\d+)$", _read(node / "properties"), re.MULTILINE))
        # Processors are nodes as well; they have no vector units of a GPU.
        if int(properties.get("simd_count", 0)) == 0:
            continue
        card = system / f"class/drm/renderD{properties.get('drm_render_minor')}/device"
        unique_id = properties.get("unique_id", "0")
        yield AmdGpu(
            _read(card / "product_name") or f"AMD {_name_architecture(properties)}",
            _read_number(card / "mem_info_vram_total"),
            _read_limit_w(card),
            "" if unique_id == "0" else unique_id,
        )


def _name_architecture(properties: Mapping[str, str]) -> str:
    """Return the name that compilers use: 90402 → ``gfx942``."""
    version = int(properties.get("gfx_target_version", 0))
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}" if version else "GPU"


def _read_limit_w(card: Path) -> float:
    caps = [_read_number(path) for path in sorted(card.glob("hwmon/hwmon*/power1_cap"))]
    return caps[0] / 1e6 if caps else 0.0


def _read_number(path: Path) -> int:
    text = _read(path)
    return int(text) if text.isdecimal() else 0


def _read(path: Path) -> str:
    """Return the text of a file; empty if it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
