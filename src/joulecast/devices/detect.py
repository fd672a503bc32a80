"""Detect the processor or GPU behind ``cpu`` or ``cuda:1``.

``detect_device`` returns its name, memory, driver and power mode. ``find_gpu`` returns the UUID of
the GPU, which tells a meter what to read:

    cuda:1 ──CUDA_VISIBLE_DEVICES──▶ "5", "GPU-8932…" or "MIG-…" ──NVML──▶ the whole UUID

CUDA numbers only visible GPUs, in the order of CUDA_VISIBLE_DEVICES; NVML numbers all of them. A
slice of a GPU (MIG) is a device of its own, with its own name and memory, but it has no meter: that
of the whole GPU is read. On a Jetson, whose GPU shares its memory and its sensors with the
processor, NVML is not asked: the device tree names the board, and its power mode has these parts:

    MAXN, cpu 1190-2265 MHz schedutil, gpu 114-1377 MHz nvhost_podgov

AMD's GPUs are found in the files of their driver, in the order of HIP. PyTorch for ROCm calls them
``cuda:0``, ``cuda:1`` …, those that HIP_VISIBLE_DEVICES shows:

    /sys/class/kfd/kfd/topology/nodes/*/properties    processors and GPUs, as ROCm numbers them
    /sys/class/drm/renderD128/device                  product name, memory and power limit of a GPU
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

from joulecast.records import Device
from joulecast.system.errors import InputError, MissingError

ROOT = Path("/")
"""Where the files of the system are; tests have them elsewhere."""

_NODES = "sys/class/kfd/kfd/topology/nodes"
_CLOCK = "sys/devices/system/cpu/cpu0/cpufreq"
_VISIBLE = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
_ON = re.compile(r"(cpu|cuda)(?::([0-9]+))?")
# What Linux calls the instructions on x86 and ARM.
_BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16", "svebf16"}
# What Linux calls the GPUs of Jetson boards among the devices whose clocks it scales.
_JETSON_GPU = re.compile(r"gpu|g[pv]1[01]b|g[ab]10b")
_POWER_MODEL = re.compile(r"^<\s*POWER_MODEL\s+ID=0*([0-9]+)\s+NAME=(\S+)", re.MULTILINE)
# Parts of processor names that identify nothing.
_NOISE = re.compile(
    r"\((?:R|TM|C)\)|@.*|\bw(?:ith|/)\s.*|\b[0-9]+-Core\b|\b(?:CPU|Processor|APU)\b", re.IGNORECASE
)


def detect_device(on: str) -> Device:
    """Return the device behind ``cpu``, ``cuda`` or ``cuda:1``."""
    _, index = parse_on(on)
    if is_jetson():
        return _detect_jetson(index)
    if index is None:
        return _detect_cpu()
    return _detect_amd(index) if has_amd_gpus() else _detect_gpu(on)


def parse_on(on: str) -> tuple[str, int | None]:
    """Return type and index: ``cpu`` → (cpu, None), ``cuda:1`` → (cuda, 1), ``cuda`` → index 0."""
    if "," in on or "+" in on:
        raise InputError(f"{on!r} names several devices: give one device at a time, like cuda:0")
    match = _ON.fullmatch(on.strip())
    if match is None or (match[1] == "cpu" and match[2]):
        raise InputError(f"there is no device {on!r}: give cpu or cuda:0")
    return match[1], None if match[1] == "cpu" else int(match[2] or 0)


def find_free_memory(device: Device) -> int:
    """Return how many bytes a trial on a device of this machine can use; 0 if that is unknown.

    Processors and Jetsons share their memory with other programs; a GPU has its own.
    """
    if device.memory_bytes != _read_memory_bytes():
        return device.memory_bytes
    return _read_memory_bytes("MemAvailable")


def multiplies_bf16() -> bool:
    """Return whether this machine's processor has instructions for products of bf16."""
    cpuinfo = read_system(ROOT / "proc/cpuinfo")
    flags = re.findall(r"^(?:flags|Features)\s*:(.*)$", cpuinfo, re.MULTILINE)
    return bool(flags) and not _BF16_FLAGS.isdisjoint(flags[0].split())


def make_slug(name: str) -> str:
    """Return a name for files and commands: ``Intel(R) Xeon(R) CPU @ 2GHz`` → ``intel-xeon``."""
    parts = re.findall(r"[a-z0-9]+", _NOISE.sub(" ", name).lower())
    return "-".join(parts) or "unknown"


# ---------------------------------------------------------------------------------------------
# Processors


def _detect_cpu() -> Device:
    processor = _read_processor()
    mode = read_system(ROOT / _CLOCK / "scaling_governor")
    # No driver: a new kernel must not start a new profile.
    return Device(make_slug(processor), processor, _read_memory_bytes(), power_mode=mode)


def read_system(path: Path) -> str:
    """Return the text of a system file; empty if it cannot be read."""
    try:
        return path.read_text(errors="replace").strip("\0\n ")
    except OSError:
        return ""


def _read_processor() -> str:
    """Return the processor's name; boards have theirs in the device tree instead."""
    cpuinfo = read_system(ROOT / "proc/cpuinfo")
    lines = re.findall(r"^([^:\n]+?)\s*:\s*(.*?)\s*$", cpuinfo, re.MULTILINE)
    info: dict[str, str] = {}
    for key, value in lines:
        info.setdefault(key.lower(), value)
    board = read_system(ROOT / "proc/device-tree/model")
    names = (info.get("model name", ""), board, info.get("model", ""), info.get("hardware", ""))
    # On x86 "model" is a number; a name has letters.
    return next((name for name in names if re.search("[A-Za-z]", name)), platform.machine())


def _read_memory_bytes(field: str = "MemTotal") -> int:
    meminfo = read_system(ROOT / "proc/meminfo")
    match = re.search(rf"^{field}:\s*([0-9]+) kB", meminfo, re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


# ---------------------------------------------------------------------------------------------
# Jetson boards


def is_jetson() -> bool:
    """Return whether this machine is a Jetson board."""
    return "nvidia,tegra" in read_system(ROOT / "proc/device-tree/compatible")


def _detect_jetson(index: int | None) -> Device:
    if index:
        raise MissingError(f"cuda:{index} was not found: a Jetson has one GPU, cuda:0")
    board = _read_processor()
    processor = board if index is None else f"{board} GPU"
    cpu = _describe_clock("cpu", ROOT / _CLOCK, "scaling_", 1e3)
    gpus = [
        _describe_clock("gpu", folder, "", 1e6)
        for folder in sorted((ROOT / "sys/class/devfreq").glob("*"))
        if _JETSON_GPU.search(folder.name)
    ]
    mode = ", ".join(filter(None, (_read_nvpmodel(), cpu, *gpus)))
    return Device(make_slug(processor), processor, _read_memory_bytes(), power_mode=mode)


def _read_nvpmodel() -> str:
    """Return the name of the mode that nvpmodel has set; it writes ``pmode:0002``."""
    found = re.search(r"pmode:0*([0-9]+)", read_system(ROOT / "var/lib/nvpmodel/status"))
    if found is None:
        return ""
    # Comments, which begin with #, may show the same line.
    names = dict(re.findall(_POWER_MODEL, read_system(ROOT / "etc/nvpmodel.conf")))
    return str(names.get(found[1], f"nvpmodel {found[1]}"))


def _describe_clock(name: str, folder: Path, prefix: str, per_mhz: float) -> str:
    """Return range of clock and governor; ``jetson_clocks`` makes both ends of the range equal."""
    texts = [read_system(folder / f"{prefix}{end}_freq") for end in ("min", "max")]
    if not all(text.isdecimal() for text in texts):
        return ""
    clocks = "-".join(dict.fromkeys(f"{int(text) / per_mhz:.0f}" for text in texts))
    return f"{name} {clocks} MHz {read_system(folder / f'{prefix}governor')}".strip()


# ---------------------------------------------------------------------------------------------
# AMD GPUs


def list_amd_gpus() -> list[Device]:
    """Return the GPUs of this machine as ROCm numbers them."""
    gpus = []
    driver = read_system(ROOT / "sys/module/amdgpu/version")
    nodes = (ROOT / _NODES).glob("[0-9]*")
    for node in sorted(nodes, key=lambda path: int(path.name)):
        properties = read_system(node / "properties")
        texts = dict(re.findall(r"^(\w+) (\d+)$", properties, re.MULTILINE))
        # Processors are nodes as well; they have no vector units of a GPU.
        if int(texts.get("simd_count", 0)) == 0:
            continue
        card = ROOT / f"sys/class/drm/renderD{texts.get('drm_render_minor')}/device"
        # The name that compilers use, where the card has none: 90402 → gfx942.
        version = int(texts.get("gfx_target_version", 0))
        short = f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
        name = read_system(card / "product_name") or f"AMD {short if version else 'GPU'}"
        memory_bytes = _read_number(card / "mem_info_vram_total")
        caps_uw = [_read_number(path) for path in sorted(card.glob("hwmon/hwmon*/power1_cap"))]
        unit = _name_unit(texts["unique_id"]) if int(texts.get("unique_id", 0)) else ""
        mode = _describe_limit(caps_uw[0] / 1e6 if caps_uw else 0.0)
        gpus.append(Device(make_slug(name), name, memory_bytes, driver, mode, unit))
    return gpus


def _describe_limit(limit_w: float) -> str:
    return f"limit {limit_w:.0f}W" if limit_w else ""


def _read_number(path: Path) -> int:
    text = read_system(path)
    return int(text) if text.isdecimal() else 0


def has_amd_gpus() -> bool:
    """Return whether the GPUs of this machine, ``cuda:0`` and so on, are AMD's."""
    # In a machine with GPUs of both makers, they are NVIDIA's.
    return not (ROOT / "proc/driver/nvidia").exists() and bool(list_amd_gpus())


def _detect_amd(index: int) -> Device:
    gpus = list_amd_gpus()
    # HIP reads the first of them that is set, and stops at the first number that does not exist.
    visible = next((os.environ[name] for name in _VISIBLE if name in os.environ), None)
    if visible is not None:
        numbers = [int(part) if part.strip().isdecimal() else -1 for part in visible.split(",")]
        gpus = [gpus[number] for number in takewhile(range(len(gpus)).__contains__, numbers)]
    if index >= len(gpus):
        raise MissingError(
            f"cuda:{index} was not found: ROCm shows {len(gpus)} GPUs; check amd-smi list and "
            "HIP_VISIBLE_DEVICES"
        )
    return gpus[index]


# ---------------------------------------------------------------------------------------------
# NVIDIA GPUs


def find_gpu(on: str) -> str | None:
    """Return NVML's UUID of the GPU behind ``cuda:1``; None for ``cpu``, a Jetson or an AMD GPU."""
    _, index = parse_on(on)
    if index is None or is_jetson() or has_amd_gpus():
        return None
    with open_nvml(on) as nvml:
        return decode_name(nvml.nvmlDeviceGetUUID(_find_handles(nvml, on)[0]))


def visible_gpu(index: int) -> str:
    """Return what CUDA resolves ``index`` to: an index over all GPUs, or the start of a UUID."""
    variable = os.environ.get("CUDA_VISIBLE_DEVICES")
    if variable is None:
        return str(index)
    entries = (entry.strip() for entry in variable.split(","))
    # CUDA stops at the first invalid entry; -1 is the usual way to hide all GPUs.
    visible = list(takewhile(re.compile(r"(?:[0-9]+|(?:GPU|MIG)-.+)$").match, entries))
    if index >= len(visible):
        raise MissingError(
            f"cuda:{index} was not found: CUDA_VISIBLE_DEVICES={variable!r} shows {len(visible)} "
            "GPUs; change it or give another device"
        )
    return visible[index]


class UnavailableError(MissingError):
    """A device or an instrument was not found, or cannot be read: why, and what to do."""

    def __init__(self, reason: str, advice: str) -> None:
        super().__init__(f"{reason}; {advice}")
        self.reason = reason
        self.advice = advice


@contextmanager
def open_nvml(on: str = "") -> Iterator[Any]:
    """Yield the initialised pynvml module; errors are UnavailableError, and name the device."""
    where = f"{on} was not found, because " if on else ""
    try:
        import pynvml
    except ImportError as error:
        reason = f"{where}the package nvidia-ml-py is not installed"
        raise UnavailableError(reason, "run: pip install nvidia-ml-py") from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise UnavailableError(
            f"{where}the NVIDIA driver does not respond ({error})",
            "install it and check that nvidia-smi works, or use the processor",
        ) from error
    try:
        yield pynvml
    except pynvml.NVMLError as error:
        raise UnavailableError(f"NVML failed ({error})", "check nvidia-smi") from error
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _detect_gpu(on: str) -> Device:
    with open_nvml(on) as nvml:
        handle, slice_ = _find_handles(nvml, on)
        processor = decode_name(nvml.nvmlDeviceGetName(handle))
        if slice_ is not None:
            processor = _name_slice(nvml, slice_, processor)
        try:
            limit_w = nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3
        except nvml.NVMLError:
            limit_w = 0.0
        return Device(
            make_slug(processor),
            processor,
            int(nvml.nvmlDeviceGetMemoryInfo(handle if slice_ is None else slice_).total),
            decode_name(nvml.nvmlSystemGetDriverVersion()),
            _describe_limit(limit_w),
            _name_unit(decode_name(nvml.nvmlDeviceGetUUID(handle))),
        )


def _name_slice(nvml: Any, slice_: Any, processor: str) -> str:
    """Return the name of a slice: ``NVIDIA H200 MIG 1g.18gb``."""
    name = decode_name(nvml.nvmlDeviceGetName(slice_))
    if "MIG" in name:
        return name
    # Some drivers give the name of the whole GPU.
    sizes = nvml.nvmlDeviceGetAttributes(slice_)
    whole, part = sizes.gpuInstanceSliceCount, sizes.computeInstanceSliceCount
    shared = "" if part == whole else f"{part}c."
    return f"{processor} MIG {shared}{whole}g.{round(sizes.memorySizeMB / 1024)}gb"


def _name_unit(uuid: str) -> str:
    """Return a short name of one GPU that does not reveal its UUID."""
    return hashlib.sha256(uuid.encode()).hexdigest()[:8]


def _find_handles(nvml: Any, on: str) -> tuple[Any, Any | None]:
    """Return NVML's handles of the physical GPU and of its slice; None for a whole GPU."""
    entry = visible_gpu(parse_on(on)[1] or 0)
    handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    if entry.startswith("MIG-"):
        slice_ = _find_slice(nvml, handles, entry)
        handle = slice_
        if slice_ is not None:
            handle = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(slice_)
    else:
        find = _find_by_uuid if entry.startswith("GPU-") else _find_by_number
        handle = find(nvml, handles, entry)
        # CUDA runs on the first slice of a GPU that is split.
        slice_ = None if handle is None else next(_list_slices(nvml, handle), None)
    if handle is None:
        raise MissingError(
            f"{on} was not found: GPU {entry} is not among the {len(handles)} that NVML lists; "
            "check nvidia-smi -L"
        )
    return handle, slice_


def _list_slices(nvml: Any, handle: Any) -> Iterator[Any]:
    """Yield the slices of a GPU; none if it is not split."""
    try:
        is_split = nvml.nvmlDeviceGetMigMode(handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE
        count = nvml.nvmlDeviceGetMaxMigDeviceCount(handle) if is_split else 0
    except nvml.NVMLError:
        # GPUs before Ampere cannot be split.
        return
    for index in range(count):
        try:
            slice_ = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except nvml.NVMLError:
            # Not every number that a slice may have is in use.
            continue
        yield slice_


def _find_by_number(nvml: Any, handles: list[Any], entry: str) -> Any:
    names = {decode_name(nvml.nvmlDeviceGetName(handle)) for handle in handles}
    if len(names) > 1 and os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        raise InputError(
            f"GPU {entry} is ambiguous: CUDA orders GPUs by speed, NVML by PCI bus, and this "
            f"machine has {', '.join(sorted(names))}; set CUDA_DEVICE_ORDER=PCI_BUS_ID"
        )
    return handles[int(entry)] if int(entry) < len(handles) else None


def _find_by_uuid(nvml: Any, handles: list[Any], entry: str) -> Any:
    found = [h for h in handles if decode_name(nvml.nvmlDeviceGetUUID(h)).startswith(entry)]
    return found[0] if len(found) == 1 else None


def _find_slice(nvml: Any, handles: list[Any], entry: str) -> Any:
    """Return the slice of ``MIG-<uuid>`` or ``MIG-GPU-<uuid>/<instance>/<compute instance>``."""
    # Drivers from before 2021 write the second form.
    if not entry.startswith("MIG-GPU-"):
        try:
            return nvml.nvmlDeviceGetHandleByUUID(entry.encode())
        except nvml.NVMLError:
            return None
    uuid, *numbers = entry[len("MIG-") :].split("/")
    gpu = _find_by_uuid(nvml, handles, uuid)
    for slice_ in () if gpu is None else _list_slices(nvml, gpu):
        found = nvml.nvmlDeviceGetGpuInstanceId, nvml.nvmlDeviceGetComputeInstanceId
        if [str(find(slice_)) for find in found] == numbers:
            return slice_
    return None


def decode_name(value: Any) -> str:
    """Return a name or UUID of NVML as text; bindings from before 2022 return bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)
