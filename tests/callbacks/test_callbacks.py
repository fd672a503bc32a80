"""What callbacks share: reading, windows, estimates, budgets, and failures that stay ours.

Runs are simulated on a virtual clock, under a meter of one busy core of 10 W.
"""

import copy
import gc
import logging
import pickle

import pytest
import torch
from torch import nn

from joulecast.callbacks.module_reading import (
    choose_optimizer,
    choose_precision,
    copy_without_values,
    find_loss,
    is_compiled,
    join_arguments,
    list_shapes,
    name_device,
    read_training_net,
    watch_calls,
)
from joulecast.callbacks.training_energy import EnergyHooks, TrainingEnergy, TrainingRun, never_fail
from joulecast.callbacks.training_windows import TrainingWindow, sum_windows, summarise_steps
from joulecast.features.monitor import WindowEnergy
from joulecast.records import Setup
from joulecast.system.errors import InputError, JoulecastError, StoreError
from training_examples import use_virtual_clock

SHIPPED = "nvidia-h200"


def make_run(steps=100, processes=1, **setup) -> TrainingRun:
    return TrainingRun("cpu", steps, Setup(loss="own", **setup), processes)


def make_energy(run=None, **options) -> TrainingEnergy:
    options = {"meter": "modelled", "device": SHIPPED, "save": False, **options}
    return TrainingEnergy(EnergyHooks(**options), run or make_run())


@pytest.fixture
def clock():
    with use_virtual_clock() as clock:
        yield clock


def run_steps(clock, energy: TrainingEnergy, count: int, step_s: float = 0.03) -> None:
    for _ in range(count):
        energy.step_begin()
        energy.add_batch(is_odd=False)
        clock.sleep(step_s)
        energy.step_end()


def read_linear(energy: TrainingEnergy) -> None:
    energy.read_batch(nn.Sequential(nn.Linear(8, 4)), (torch.randn(6, 8),))


# -- reading --------------------------------------------------------------------------------


class Counting(nn.Module):
    """A module with state of its own, which reading must not change."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 4)
        self.calls = torch.zeros(())

    def forward(self, x, labels):
        self.calls = self.calls + x.sum()
        logits = self.head(self.norm(x))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def test_reading_changes_neither_module_nor_random_numbers():
    net = Counting().train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    inputs = {"x": torch.randn(6, 8), "labels": torch.zeros(6, dtype=torch.long)}
    state = torch.random.get_rng_state()
    found, setup = read_training_net(net, inputs, Setup(accumulate=3, loss="own"))
    assert "linear" in [layer.kind for layer in found.network.layers]
    assert (setup.batch, setup.accumulate) == (6, 3)
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert type(net.calls) is torch.Tensor and net.calls == 0
    assert torch.equal(state, torch.random.get_rng_state())


def test_a_copy_without_values_keeps_ties_and_frozen_weights():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    net[1].weight = net[0].weight
    net[0].bias.requires_grad_(False)
    copied = copy_without_values(net)
    assert copied[0].weight is copied[1].weight and copied[0].weight.is_meta
    assert not copied[0].bias.requires_grad
    assert not net[0].weight.is_meta
    # It forgets the forward that Accelerate replaced, which belongs to the original.
    net._original_forward, net.forward = net.forward, lambda x: "of the original"
    assert copy_without_values(net)(torch.empty(2, 4, device="meta")).shape == (2, 4)


def test_arguments_losses_and_shapes_are_found_in_nested_values():
    net, x, loss, logits = Counting(), torch.zeros(2, 8), torch.tensor(2.0), torch.ones(3, 4)
    assert join_arguments(net, (x, x), {}) == (x, x)
    assert list(join_arguments(net, (x,), {"labels": x})) == ["x", "labels"]
    assert list(join_arguments(net, (), {"labels": x})) == ["labels"]
    for output in (loss, {"loss": loss, "logits": logits}, (loss, logits)):
        assert find_loss(output) is loss
    assert find_loss({"logits": logits}) == 1.0
    batch = {"x": torch.zeros(2, 3), "more": [torch.zeros(4), "text"]}
    assert list_shapes(batch) == ((2, 3), (4,))
    with pytest.raises(InputError, match="no tensor whose first axis"):
        read_training_net(nn.Linear(2, 2), ("text",), Setup())


# -- setups ---------------------------------------------------------------------------------


def test_setups_are_those_of_the_trainer_or_the_nearest():
    weights = [nn.Parameter(torch.zeros(2))]
    assert choose_optimizer(torch.optim.AdamW(weights)) == ("adamw", "")
    name, note = choose_optimizer(torch.optim.RMSprop(weights))
    assert name == "sgd" and "RMSprop is estimated as sgd" in note

    class Wrapper:
        optimizer = torch.optim.SGD(weights, 0.1)

    assert choose_optimizer(Wrapper()) == ("sgd", "")
    cpu, gpu = torch.device("cpu"), torch.device("cuda", 1)
    assert choose_precision(cpu) == choose_precision(gpu) == "fp32"
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        assert (choose_precision(gpu), choose_precision(cpu)) == ("tf32", "fp32")
    finally:
        torch.set_float32_matmul_precision(before)
    assert (name_device(cpu), name_device(gpu)) == ("cpu", "cuda:1")
    assert not is_compiled(nn.Linear(2, 2))


# -- calls of a module ----------------------------------------------------------------------

X = torch.zeros(3, 2)


class Net(nn.Linear):
    """A module of a user: torch.compile does not compile calls of PyTorch's own modules alone."""

    def forward(self, x):
        return super().forward(x)


class Watcher:
    def __init__(self) -> None:
        self.calls: list[tuple[int, ...]] = []

    def see_call(self, args, kwargs) -> None:
        self.calls.append(tuple(args[0].shape))


def compile_nothing(net: nn.Module) -> nn.Module:
    return net


def compile_wrapped(net: nn.Module) -> nn.Module:
    return torch.compile(net, backend="eager", fullgraph=True)


def compile_in_place(net: nn.Module) -> nn.Module:
    net.compile(backend="eager", fullgraph=True)
    return net


@pytest.mark.parametrize("prepare", [compile_nothing, compile_wrapped, compile_in_place])
def test_calls_are_seen_until_watching_ends(prepare):
    torch._dynamo.reset()
    net, watcher = prepare(Net(2, 2)), Watcher()
    compiled = net._compiled_call_impl
    end_watching = watch_calls(net, watcher)
    net(X)
    net(X)
    assert watcher.calls == [(3, 2), (3, 2)]
    end_watching()
    net(X)
    assert len(watcher.calls) == 2
    assert not net._forward_pre_hooks and net._compiled_call_impl is compiled


def test_copies_pickles_and_calls_within_one_graph_are_not_seen():
    torch._dynamo.reset()
    net, watcher = nn.Linear(2, 2), Watcher()
    watcher.secret = (one for one in ())  # a generator can be neither copied nor pickled
    watch_calls(net, watcher)
    copy.deepcopy(net)(X)
    pickle.loads(pickle.dumps(net))(X)  # noqa: S301 - written here
    compile_wrapped(nn.Sequential(net))(X)
    calls = watcher.calls
    del watcher
    gc.collect()
    # A watcher is not kept alive.
    net(X)
    assert calls == []


# -- windows --------------------------------------------------------------------------------


def make_window(energy_j=10.0, duration_s=1.0, faults=(), error="", **content) -> TrainingWindow:
    content = {"steps": 5, "batches": 5, "is_warm": True, **content}
    energy = WindowEnergy(
        "training", energy_j, duration_s, "cpu", "nvml", "gpu", "measured", faults, (), error
    )
    return TrainingWindow(**content, measured=energy)


def test_sums_separate_steps_from_evaluation_and_from_the_start():
    windows = [
        make_window(100.0, steps=0, is_warm=False, is_mixed=True),  # the start
        make_window(30.0, steps=3, is_warm=False),
        make_window(10.0),
        make_window(10.0),
        make_window(16.0, steps=5, is_mixed=True),  # with an evaluation of 6 J
    ]
    sums = sum_windows(windows)
    assert sums.energy_j == pytest.approx(166.0)
    assert (sums.steps, sums.steady_steps, sums.steady_j) == (18, 10, 20.0)
    assert sums.other_j_per_step == pytest.approx(6.0 / 15)


@pytest.mark.parametrize(
    ("windows", "energy_j"),
    [
        ([make_window(10.0), make_window(None, 0.5)], 15.0),  # the mean power of the rest
        ([make_window(10.0), make_window(None, 2.0)], None),  # most of it could not be read
        ([], None),
    ],
)
def test_time_that_could_not_be_read_has_the_mean_power_of_the_rest(windows, energy_j):
    sums = sum_windows(windows)
    assert sums.energy_j == (energy_j and pytest.approx(energy_j))
    assert (sums.power_w is None) == (energy_j is None)


def test_a_profile_learns_the_median_of_steady_windows():
    windows = [make_window(energy_j) for energy_j in (9.0, 10.0, 20.0)]
    windows.append(make_window(1000.0, is_mixed=True))
    found, reason = summarise_steps(windows, accumulate=1)
    assert not reason
    assert (found["energy_j"], found["duration_s"]) == (2.0, 0.2)
    assert (found["count"], found["measured_steps"]) == (3, 15) and found["energy_sd_j"] > 0


@pytest.mark.parametrize(
    ("spoilt", "reason"),
    [
        ({"waiting_s": 0.2}, "more than 5.00 % of the time passed between steps"),
        ({"odd_batches": 1}, "batches differ in shape"),
        ({"batches": 10}, "the module is not called 1 times a step"),
        ({"faults": ("other load: python",)}, "the meter reported other load: python"),
        ({"energy_j": None}, "the meter reported no energy"),
        ({"error": "KeyError"}, "training ended by KeyError"),
        ({"is_mixed": True}, "2 of the 3 windows that are needed contain steps alone"),
    ],
)
def test_windows_that_are_not_comparable_are_not_learnt(spoilt, reason):
    found, why = summarise_steps([make_window(), make_window(), make_window(**spoilt)], 1)
    assert not found
    assert why.startswith(reason)
    windows = [make_window(steps=5, batches=20) for _ in range(3)]
    assert summarise_steps(windows, 4)[0] and not summarise_steps(windows, 2)[0]


# -- a run ----------------------------------------------------------------------------------


def test_a_run_is_estimated_measured_and_projected(clock, caplog):
    with caplog.at_level(logging.INFO):
        energy = make_energy(make_run(30))
        read_linear(energy)
        low_j, high_j = energy.estimate.interval_j
        before = energy.project()
        assert before == (pytest.approx(30 * energy.estimate.energy_j), 30 * low_j, 30 * high_j)
        run_steps(clock, energy, 20)
        during = energy.list_scalars()
        run_steps(clock, energy, 10)
        summary = energy.finish()
    # 30 steps of 30 ms on a core of 10 W
    assert summary.energy_j == pytest.approx(9.0)
    assert during["energy/projected_j"] == pytest.approx(summary.energy_j, rel=0.01)
    assert during["energy/measured_j"] < summary.energy_j
    assert during["energy/projected_low_j"] < during["energy/projected_j"]
    assert during["energy/estimated_j"] == pytest.approx(30 * energy.estimate.energy_j)
    assert (summary.steps, summary.provenance) == (30, "modelled")
    assert "Estimate: 30 steps take" in caplog.text
    assert "Training took 9.00 J" in caplog.text


def test_evaluation_is_part_of_the_energy_and_of_the_projection_but_not_of_a_step(clock):
    energy = make_energy(make_run(60), device="")
    run_steps(clock, energy, 30, 0.02)
    energy.turn_to_other()
    clock.sleep(0.4)
    run_steps(clock, energy, 1, 0.02)
    energy.turn_to_other()
    sums = energy._sums
    # The window of the last step is still open.
    assert sums.energy_j == pytest.approx(10.0)
    assert sums.steady_j / sums.steady_steps == pytest.approx(0.2)
    # 29 steps are left, with their share of the evaluation.
    assert energy.project()[0] > 10.2 + 29 * 0.25
    energy.finish()


class Strange(nn.Module):
    def forward(self, x):
        raise ValueError("only on Sundays")


def test_without_a_profile_the_run_is_measured_and_one_line_says_what_to_do(
    clock, tmp_path, caplog
):
    energy = make_energy(device="", store=str(tmp_path / "empty.sqlite"))
    read_linear(energy)
    energy.read_batch(Strange(), (torch.zeros(2, 2),))
    assert energy.estimate is None and energy.project() is None
    warnings = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert len(warnings) == 2 and "only on Sundays" in warnings[1]
    assert all("No estimate, the run is only measured" in one for one in warnings)
    run_steps(clock, energy, 20)
    assert energy.list_scalars()["energy/projected_j"] == pytest.approx(30.0)
    assert energy.finish().energy_j > 0


def test_a_second_run_is_estimated_from_the_first(clock, tmp_path):
    first, second = (
        make_energy(device="", store=str(tmp_path / "store.sqlite"), save=True) for _ in range(2)
    )
    for energy in (first, second):
        read_linear(energy)
        run_steps(clock, energy, 200)
        energy.finish()
    assert first.estimate is None and first.observation is not None
    assert second.estimate.is_measured
    assert second.estimate.energy_j == pytest.approx(first.observation.energy_j)


@pytest.mark.parametrize("processes", [1, 4])
def test_the_budget_warns_before_and_stops_a_single_process_during_the_run(
    clock, caplog, processes
):
    energy = make_energy(make_run(1000, processes), budget="3 J")
    read_linear(energy)
    assert "The budget of 3.00 J lasts for about" in caplog.text
    for _ in range(60):
        run_steps(clock, energy, 1)
        if energy.is_over_budget:
            break
    assert energy.is_over_budget and energy.must_stop == (processes == 1)
    summary = energy.finish()
    assert summary.stopped_by_budget == (processes == 1) and 3.0 <= summary.energy_j < 6.5
    goes_on = "training stops here" if processes == 1 else "training goes on"
    assert "is passed" in caplog.text and goes_on in caplog.text
    told = caplog.text.count("Only the device of this process is measured, one of 4")
    assert told == (processes > 1)


def test_batches_of_other_shapes_are_not_learnt(clock, tmp_path, caplog):
    hooks = EnergyHooks(device=SHIPPED, meter="modelled", store=str(tmp_path / "s.sqlite"))
    energy = hooks.begin_run(make_run(40))
    net = nn.Sequential(nn.Linear(8, 4))
    with caplog.at_level(logging.INFO):
        for n in range(40):
            energy.step_begin()
            hooks.add_inputs(net, (torch.randn(6 + n % 2, 8),))
            clock.sleep(0.02)
            energy.step_end()
        hooks.finish()
    assert energy.observation is None
    assert "Nothing was stored for the profile: batches differ in shape" in caplog.text


def test_a_store_that_fails_does_not_lose_the_run(clock, monkeypatch, tmp_path, caplog):
    def refuse(observation, store):
        raise StoreError("the disk is full: make room")

    monkeypatch.setattr("joulecast.callbacks.training_energy.save_observation", refuse)
    energy = make_energy(make_run(60), save=True)
    read_linear(energy)
    run_steps(clock, energy, 38)
    assert energy.finish().energy_j > 0
    assert energy.observation is not None and "the disk is full" in caplog.text


def test_budgets_are_checked_and_a_run_is_ended_by_the_next_one(clock):
    for budget, said in (("much", "'much' is not an energy"), ("0 J", "give more than 0")):
        with pytest.raises(InputError, match=said):
            EnergyHooks(budget=budget)
    hooks = EnergyHooks(meter="modelled", save=False)
    first = hooks.begin_run(make_run())
    run_steps(clock, first, 10)
    hooks.begin_run(make_run())
    assert first.summary.error == "Exception" and first.summary.energy_j > 0
    assert hooks.summary is None and hooks.finish("KeyError").error == "KeyError"


def test_a_run_that_cannot_be_measured_does_not_show_the_one_before():
    hooks = EnergyHooks(meter="modelled", save=False)
    hooks.begin_run(make_run())
    hooks.meter = "file:missing.csv"
    with pytest.raises(JoulecastError):
        hooks.begin_run(make_run())
    assert hooks.energy is None and hooks.summary is None


class Fragile:
    def __init__(self) -> None:
        self.calls, self.has_failed, self.abandoned = 0, False, []

    def abandon(self, error):
        self.abandoned.append(error)
        raise ValueError("and once more")

    @never_fail
    def work(self):
        self.calls += 1
        raise RuntimeError("not\nours")

    @never_fail
    def interrupt(self):
        raise KeyboardInterrupt


def test_failures_of_ours_are_one_warning_and_then_silence(caplog):
    fragile = Fragile()
    for _ in range(3):
        assert fragile.work() is None
    assert fragile.calls == 1 and fragile.abandoned == ["RuntimeError"]
    assert [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING] == [
        "Energy is no longer measured, and training goes on: RuntimeError: not ours"
    ]
    with pytest.raises(KeyboardInterrupt):
        Fragile().interrupt()
