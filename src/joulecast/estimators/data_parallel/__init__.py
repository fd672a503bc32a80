"""Estimate a training step on several GPUs of one machine, from that of one GPU.

    Estimate of one GPU ──replicate_step──▶ Estimate of N GPUs, all-reduce included

    all_reduce.py         ``model_all_reduce``: what summing gradients adds to a step
    gpu_group.py          the link and the power of a device, and what is refused
    replicated_steps.py   estimates of one GPU ──▶ of several, with their intervals

The model is of PyTorch's DistributedDataParallel: every GPU runs the step on its own batch, and a
ring all-reduce sums the gradients. None of it was measured here.
"""

from joulecast.estimators.data_parallel.gpu_group import GpuGroup, find_gpu_group
from joulecast.estimators.data_parallel.replicated_steps import replicate_step, replicate_steps

__all__ = ["GpuGroup", "find_gpu_group", "replicate_step", "replicate_steps"]
