"""A fake pynvml for machines without a GPU: two GPUs whose counter increases with every call.

Tests change it with monkeypatch; the poller's process imports a copy as ``pynvml``.
"""

import itertools
from types import SimpleNamespace

NVML_DEVICE_MIG_ENABLE = 1

UUIDS = ["GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "GPU-1a2b3c4d-0000-1111-2222-333344445555"]
NAMES = ["NVIDIA H200", "NVIDIA H200"]
# Slices of GPUs by UUID: the GPU's number, and those of its instance and compute instance.
MIGS = {
    "MIG-77777777-0000-0000-0000-000000000000": (1, 7, 0),
    "MIG-88888888-0000-0000-0000-000000000000": (1, 9, 0),
}
MIG_NAMES = {7: "NVIDIA H200 MIG 1g.18gb", 9: "NVIDIA H200 MIG 3g.71gb"}
MIG_MODES = [0, 0]
# What these functions return for any GPU.
VALUES = {
    "GetMaxMigDeviceCount": 7,
    "GetEnforcedPowerLimit": 700_000,
    "GetPowerUsage": 81_500,
    "GetUtilizationRates": SimpleNamespace(gpu=30, memory=10),
    "GetCurrentClocksEventReasons": 0x4,
    "GetCurrentClocksThrottleReasons": 0x4,
    "GetComputeRunningProcesses": [],
}
globals().update({f"nvmlDevice{name}": lambda _, x=value: x for name, value in VALUES.items()})
counter_mj = itertools.count(1_000_000, 500)


class NVMLError(Exception):
    pass


def fail(*args):
    raise NVMLError("Not Supported")


def nvmlInit():
    pass


nvmlShutdown = nvmlInit


def nvmlSystemGetDriverVersion():
    return "580.159.04"


def nvmlDeviceGetCount():
    return len(UUIDS)


def nvmlDeviceGetHandleByIndex(index):
    if index >= len(UUIDS):
        raise NVMLError("Invalid Argument")
    return index


def nvmlDeviceGetHandleByUUID(uuid):
    # All bindings take bytes, and those from before 2022 nothing else.
    name = uuid.decode()
    if name in MIGS:
        return MIGS[name]
    known = [one.decode() if isinstance(one, bytes) else one for one in UUIDS]
    if name not in known:
        raise NVMLError("Not Found")
    return known.index(name)


def nvmlDeviceGetMigMode(handle):
    return [MIG_MODES[handle], MIG_MODES[handle]]


def nvmlDeviceGetMigDeviceHandleByIndex(handle, index):
    """Return a slice; the first number is free, as after a slice was removed."""
    slices = [None, *(one for one in MIGS.values() if one[0] == handle)]
    if index >= len(slices) or slices[index] is None:
        raise NVMLError("Not Found")
    return slices[index]


def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle):
    return handle[0]


def nvmlDeviceGetGpuInstanceId(handle):
    return handle[1]


def nvmlDeviceGetComputeInstanceId(handle):
    return handle[2]


def nvmlDeviceGetAttributes(handle):
    whole = {7: 1, 9: 3}[handle[1]]
    return SimpleNamespace(
        gpuInstanceSliceCount=whole, computeInstanceSliceCount=whole, memorySizeMB=18432 * whole
    )


def nvmlDeviceGetUUID(handle):
    return UUIDS[handle]


def nvmlDeviceGetName(handle):
    return MIG_NAMES[handle[1]] if isinstance(handle, tuple) else NAMES[handle]


def nvmlDeviceGetMemoryInfo(handle):
    if isinstance(handle, tuple):
        return SimpleNamespace(total=19_000_000_000)
    return SimpleNamespace(total=150_000_000_000 + handle)


def nvmlDeviceGetTotalEnergyConsumption(handle):
    return next(counter_mj)
