"""PyTorch on the CPU passes the contract of runtimes."""

from joulecast.records import Device
from joulecast.runtimes.torch.runtime import TorchRuntime
from joulecast.testing.runtimes import RuntimeContract


class TestTorchOnCpu(RuntimeContract):
    def make_runtime(self) -> TorchRuntime:
        return TorchRuntime("cpu", Device("a-cpu"))
