"""A fake pynvml for machines without a GPU: two GPUs whose counter increases with every call.

Tests change it with monkeypatch; the poller's process imports a copy as ``pynvml``.
"""

import itertools
from types import SimpleNamespace

NVML_TEMPERATURE_GPU = 0
NVML_CLOCK_SM = 1

UUIDS = ["GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "GPU-1a2b3c4d-0000-1111-2222-333344445555"]
NAMES = ["NVIDIA H200", "NVIDIA H200"]
MIGS = {"MIG-77777777-0000-0000-0000-000000000000": 1}
PIDS: list = []
counter_mj = itertools.count(1_000_000, 500)


class NVMLError(Exception):
    pass


def fail(*args):
    raise NVMLError("Not Supported")


def nvmlInit():
    pass


def nvmlShutdown():
    pass


def nvmlSystemGetDriverVersion():
    return "580.159.04"


def nvmlDeviceGetCount():
    return len(UUIDS)


def nvmlDeviceGetHandleByIndex(index):
    if index >= len(UUIDS):
        raise NVMLError("Invalid Argument")
    return index


def nvmlDeviceGetHandleByUUID(uuid):
    if uuid in MIGS:
        return ("slice of", MIGS[uuid])
    if uuid not in UUIDS:
        raise NVMLError("Not Found")
    return UUIDS.index(uuid)


def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle):
    return handle[1]


def nvmlDeviceGetUUID(handle):
    return UUIDS[handle]


def nvmlDeviceGetName(handle):
    return NAMES[handle]


def nvmlDeviceGetMemoryInfo(handle):
    return SimpleNamespace(total=150_000_000_000 + handle)


def nvmlDeviceGetEnforcedPowerLimit(handle):
    return 700_000


def nvmlDeviceGetTotalEnergyConsumption(handle):
    return next(counter_mj)


def nvmlDeviceGetPowerUsage(handle):
    return 81_500


def nvmlDeviceGetTemperature(handle, sensor):
    return 41


def nvmlDeviceGetClockInfo(handle, clock):
    return 1980


def nvmlDeviceGetCurrentClocksEventReasons(handle):
    return 0x4


def nvmlDeviceGetCurrentClocksThrottleReasons(handle):
    return 0x4


def nvmlDeviceGetComputeRunningProcesses(handle):
    return [SimpleNamespace(pid=pid) for pid in PIDS]
