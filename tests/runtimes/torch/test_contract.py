"""PyTorch on the CPU keeps to what every runtime must."""

from joulecast.records import Device
from joulecast.runtimes.torch.runtime import TorchRuntime
from joulecast.testing.runtimes import RuntimeContract


class TestTorchOnTheCpu(RuntimeContract):
    def make_runtime(self) -> TorchRuntime:
        return TorchRuntime("cpu", Device("a-cpu"))
