"""Simulated devices with data sheets, and a small model that they share."""

from functools import lru_cache

from additive_examples import SETUP, draw_networks, observe_blocks, observe_idle, observe_step
from joulecast.estimators.additive.fit import MeasuredDevice, fit_model, fit_shared_model
from joulecast.estimators.additive.observations import decompose_observations
from joulecast.records import DataSheet, Trial
from joulecast.simulation import make_simulated_device

SEEDS = (301, 302, 303)
LEFT_OUT = 304


def describe_chip(chip):
    """Return the data sheet of a simulated device."""
    gains = {name: chip.gains[name] for name in ("fp32", "tf32", "bf16", "fp16")}
    return DataSheet(
        name=f"simulated-{chip.seed}",
        title=f"Simulated {chip.seed}",
        units=chip.workers,
        clock_hz=1.5e9,
        flops_per_s={name: gain * chip.rate_flops for name, gain in gains.items()},
        bytes_per_s=chip.bandwidth_bytes_per_s,
        memory_bytes=2**34,
        power_limit_w=chip.limit_w,
        vendor="simulated",
        l2_bytes=int(chip.cache_bytes),
    )


def observe_device(device, count=2, seed=1):
    networks = draw_networks(count, seed=seed)
    eager = [observe_step(device, Trial(networks[0], SETUP), energy=False)]
    return [*observe_blocks(device, networks), *eager, observe_idle(device)]


@lru_cache(maxsize=1)
def make_shared_model():
    """Return the shared model of three simulated devices; the fourth is left out."""
    measured, host_time = [], None
    for seed in SEEDS:
        device = make_simulated_device(seed, noise=0.0)
        observations = observe_device(device)
        host_time = host_time or fit_model(observations).host_time
        alone = [one for one in decompose_observations(observations) if one.mode == "graph"]
        measured.append(MeasuredDevice(describe_chip(device.chip), alone))
    return fit_shared_model(measured, measured, host_time, "a notice")
