"""Small results of every kind that can be reported, as their commands write them."""

from datetime import UTC, datetime

from joulecast.estimators.forecast import RunForecast
from joulecast.features.device_score import (
    DeviceFacts,
    DeviceScore,
    DeviceScores,
    ScoredConfiguration,
)
from joulecast.features.evaluate import Evaluation, NetEstimate, NetResult
from joulecast.features.evaluation import score_estimator
from joulecast.features.generate import GenerationEstimate, TokenEstimate
from joulecast.features.plan.problem import Battery, Job, JobForecast, PlanDevice, Problem
from joulecast.features.plan.result import plan_jobs
from joulecast.records import Device, Setup


def make_evaluation(provenance="simulated"):
    """Return an evaluation of two estimators on three networks."""
    estimates = {
        "additive": lambda j: NetEstimate(1.02 * j, (0.95 * j, 1.1 * j), (0.9 * j, 1.2 * j), 0.1),
        "flops": lambda j: NetEstimate(1.5 * j, (j, 2 * j), (0.5 * j, 3 * j), 0.1),
    }
    nets = tuple(
        NetResult(
            f"lenet5:{i}",
            (j, 1.01 * j),
            j,
            0.11,
            1e6,
            {n: make(j) for n, make in estimates.items()},
        )
        for i, j in enumerate((1.0, 2.0, 3.0), start=1)
    )
    scores = tuple(score_estimator(name, nets, device_seconds=9.0, points=7) for name in estimates)
    device = Device("board", power_mode="15W")
    return Evaluation(
        "e1", "lenet5", (1, 28, 28), Setup(batch=8), device, "torch-2.13.0", "ina", "board",
        provenance, 1, 60.0, "2026-11-16", 1.0, scores, nets, ("x: it failed",), (),
    )  # fmt: skip


def make_plan():
    """Return a plan of a job on a device with a battery."""
    battery = Battery(36_000.0, 30_000.0, 3_600.0)
    phone = PlanDevice("phone", power_w=5.0, flops_per_s=1.0, battery=battery)
    forecast = JobForecast(RunForecast(900.0, 300.0, 0.1, 0.1), 1.0, "modelled")
    problem = Problem((phone,), (Job("night", forecasts={"phone": forecast}),))
    return plan_jobs(problem, datetime(2030, 5, 1, tzinfo=UTC), 0.5, 5.0)


def _estimate(energy_j):
    return {
        "energy_j": energy_j, "interval_j": [0.9 * energy_j, 1.1 * energy_j], "level": 0.95,
        "duration_s": 0.01, "peak_memory_bytes": 2**20, "unseen_share": 0.1,
        "provenance": "modelled", "covers": "cpu", "device": "board", "estimator": "additive",
        "layers": [], "notes": [],
    }  # fmt: skip


ESTIMATE = _estimate(2.0)
PRUNING = {
    "net": "cnn5:8,8,8,8", "budget": "50%", "strategy": "marginal", "objective": "energy",
    "unit": "J", "before": _estimate(2.0), "after": _estimate(0.98), "budget_probability": 0.6,
    "importance_share": 0.8,
    "layers": [
        {"name": "conv1", "kind": "conv2d", "channels_before": 8, "channels_after": 4,
         "energy_before_j": 1.5, "energy_after_j": 0.6},
        {"name": "fc", "kind": "linear", "channels_before": 10, "channels_after": 10,
         "energy_before_j": 0.5, "energy_after_j": 0.38},
    ],
    "rounds": [
        {"counts": {"conv1": 4}, "importance_share": 0.8, "estimated_j": 0.9, "energy_j": 0.98,
         "duration_s": 0.01, "share": 0.49, "budget_probability": 0.6},
    ],
    "not_prunable": ["fc: it is the output"],
}  # fmt: skip
SCORE = DeviceScore(
    "board",
    "torch-2.13.0",
    "board",
    "measured",
    (
        ScoredConfiguration("speech", "1 thread", 0.1, 2.0),
        ScoredConfiguration("vision", "1 thread", missing="it does not fit"),
    ),
    DeviceFacts(10.0),
)


GENERATION = GenerationEstimate(
    1, 8, 1, 0.1, (0.05, 0.2), 0.2, (TokenEstimate(9, 1.0, (0.9, 1.2), 0.1),), 1.8, (1.0, 3.0), 0.3,
    9.0, 0.95, "board", "modelled", "cpu", "additive", Setup(1, "inference"),
)  # fmt: skip


def list_results():
    """Return a result of each kind, as JSON values."""
    return {
        "estimate": {**ESTIMATE, "steps": 5},
        "generation": GENERATION.to_dict(),
        "evaluation": {**make_evaluation().to_dict(), "store": "here"},
        "pruning": PRUNING,
        "plan": make_plan().to_dict(),
        "score": DeviceScores((SCORE,)).to_dict(),
    }
