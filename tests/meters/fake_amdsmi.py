"""A fake amdsmi of ROCm, for Zeus: two GPUs on a clock that a test sets.

Names, keys and units follow amdsmi 7.0.2 (amdsmi_interface.py): powers in W or "N/A", power caps in
µW, and an accumulator that is multiplied by its resolution in µJ.
"""

MARKET_NAME = "AMD Instinct MI300X"
RESOLUTION_UJ = 15.3
# Of GPUs by amd-smi's number; HIP numbers them the other way round.
HIP_IDS = [1, 0]
POWERS_W = [300, 120]
# By how much the accumulators are wrong, as on some GPUs (github.com/ROCm/amdsmi/issues/38).
COUNTER_FACTOR = 1.0
HAS_POWER = True


def now():
    """Return the time of the emulated GPUs; a test replaces it."""
    return 0.0


class AmdSmiInitFlags:
    INIT_AMD_GPUS = 2


class AmdSmiException(Exception):
    pass


class AmdSmiLibraryException(AmdSmiException):
    def __init__(self, code):
        super().__init__(code)
        self.code = code

    def get_error_code(self):
        return self.code

    def get_error_info(self):
        return f"error {self.code}"


def amdsmi_init(flags=None):
    pass


amdsmi_shut_down = amdsmi_init


def amdsmi_get_processor_handles():
    return list(range(len(HIP_IDS)))


def amdsmi_get_gpu_enumeration_info(handle):
    return {"hip_id": HIP_IDS[handle], "hip_uuid": f"GPU-{handle}"}


def amdsmi_get_gpu_asic_info(handle):
    return {"market_name": MARKET_NAME}


def amdsmi_get_power_info(handle):
    power_w = POWERS_W[handle] if HAS_POWER else "N/A"
    return {"current_socket_power": power_w, "average_socket_power": "N/A"}


def amdsmi_get_energy_count(handle):
    energy_uj = 1e9 + COUNTER_FACTOR * POWERS_W[handle] * now() * 1e6
    return {
        "energy_accumulator": int(energy_uj / RESOLUTION_UJ),
        "counter_resolution": RESOLUTION_UJ,
        "timestamp": int(now() * 1e9),
    }
