"""Trials, observations, profiles, data sheets and estimates: keys, equality, refused values."""

import copy
import json
import pickle
from dataclasses import replace
from functools import partial
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

import record_strategies as draw
from joulecast.records import (
    PROVENANCES,
    BlockEstimate,
    DataSheet,
    Device,
    Estimate,
    Execution,
    Input,
    Layer,
    LayerEstimate,
    LazyObservations,
    Network,
    Observation,
    Profile,
    Setup,
    Sizes,
    StoredFits,
    Trial,
    compute_power,
    describe_inference,
    find_fit_count,
    merge_fits,
    name_step,
    summarise_observations,
    weakest_provenance,
)
from joulecast.system.errors import InputError
from refusals import refusal

# -- trials -------------------------------------------------------------------------------------


def rename(network, name):
    """Return the network with every label replaced, down to the layers of its blocks."""

    def renamed(layer):
        return replace(layer, name=name, parts=tuple(map(renamed, layer.parts)))

    return replace(network, name=name, layers=tuple(map(renamed, network.layers)))


@given(draw.trials, draw.names, st.booleans(), st.none() | draw.totals)
def test_labels_and_totals_take_no_part_in_equality_or_key(trial, name, buildable, totals):
    network = replace(rename(trial.network, name), buildable=buildable, totals=totals)
    renamed = replace(trial, network=network)
    assert renamed == trial
    assert hash(renamed) == hash(trial)
    assert renamed.key == trial.key


@given(draw.trials, draw.trials)
def test_keys_are_equal_exactly_when_trials_are(one, other):
    assert (one.key == other.key) == (one == other)
    assert Trial.from_dict(json.loads(json.dumps(one.to_dict()))).key == one.key


@given(draw.trials)
def test_every_setting_is_part_of_the_key(trial):
    bigger = replace(trial, setup=replace(trial.setup, batch=trial.setup.batch + 1))
    longer = replace(trial, execution=replace(trial.execution, steps=trial.execution.steps + 1))
    deeper = replace(trial, network=replace(trial.network, layers=(Layer("x"), Layer("y"))))
    assert len({trial.key, bigger.key, longer.key, deeper.key}) == 4


def test_keys_are_the_same_in_every_version():
    layer = Layer("linear", Sizes({"cin": 4, "cout": 2, "lead": (), "bias": 1}), name="fc")
    trial = Trial(Network((layer,), Input((4,))), Setup(batch=8), Execution(steps=3))
    assert trial.key == "02d30849ceff0766"
    board = Profile(Device("board"), "torch-2.13.0", "gpu", "measured")
    assert board.key == "79f66f4a79c8e465"
    # Units of a device share a profile.
    assert replace(board, device=Device("board", unit="1a2b")).key == board.key


@pytest.mark.parametrize(
    ("record", "values"),
    [
        *((Setup, {name: "lion"}) for name in ("phase", "precision", "optimizer", "loss")),
        *((Execution, {name: "lazy"}) for name in ("stage", "mode", "upstream")),
        *((Setup, {"batch": 0}), (Setup, {"threads": -1})),
        *((Execution, {"copies": 0}), (Execution, {"steps": 0})),
        (partial(Observation, Trial(Network(), Setup())), {"provenance": "guessed"}),
    ],
)
def test_impossible_values_are_refused_in_one_line(record, values):
    with refusal(InputError, next(iter(values))):
        record(**values)


def test_inference_has_latency_power_and_watt_hours():
    inference = Setup(batch=1, phase="inference")
    assert name_step(inference) == "inference" and name_step(Setup()) == "step"
    assert describe_inference(inference, 7.2, 0.5) == {
        "energy_per_inference_j": 7.2,
        "latency_s": 0.5,
        "mean_power_w": 14.4,
        # 1,000 x 7.2 J are 7.2 kJ, and a watt-hour is 3.6 kJ.
        "wh_per_1000_inferences": pytest.approx(2.0),
    }
    assert describe_inference(Setup(), 7.2, 0.5) == {}
    unknown = describe_inference(inference, None, 0.5)
    assert unknown["latency_s"] == 0.5
    assert unknown["mean_power_w"] is None and unknown["wh_per_1000_inferences"] is None
    assert compute_power(1.0, 0.0) is None


# -- profiles -----------------------------------------------------------------------------------


@given(draw.devices, draw.names, draw.names, st.sampled_from(PROVENANCES))
def test_power_mode_runtime_coverage_and_provenance_have_their_own_profiles(
    device, runtime, covers, provenance
):
    profile = Profile(device, runtime, covers, provenance)
    others = [
        replace(profile, device=replace(device, power_mode=device.power_mode + "!")),
        replace(profile, runtime=runtime + "!"),
        replace(profile, covers=covers + "!"),
        replace(profile, provenance=PROVENANCES[PROVENANCES.index(provenance) - 1]),
    ]
    assert len({profile.key, *(other.key for other in others)}) == 5
    assert replace(profile, fits={"flops": {}}).key == profile.key
    grown = replace(device, memory_bytes=device.memory_bytes + 1)
    assert replace(profile, device=grown).key == profile.key


@given(st.lists(st.sampled_from(PROVENANCES)))
def test_weakest_provenance_is_the_last_in_the_list(provenances):
    weakest = weakest_provenance(provenances)
    assert all(PROVENANCES.index(weakest) >= PROVENANCES.index(one) for one in provenances)
    assert weakest in (provenances or ["measured"])


def test_a_power_mode_may_have_a_power_limit():
    modes = {"limit 700W": 700.0, "MIG 1g, limit 62.5 W": 62.5, "performance": None, "": None}
    for mode, limit_w in modes.items():
        assert Device("gpu", power_mode=mode).power_limit_w == limit_w


SEEN = tuple(
    Observation(
        Trial(Network(name=f"net {number}"), Setup()),
        float(number),
        device=Device("board", unit="ab"),
        run=f"run {number % 2}",
        cost_s=0.5,
        taken_at_s=10.0 + number,
    )
    for number in range(1, 5)
)


def make_lazy():
    parse = Mock(return_value=SEEN)
    return LazyObservations(len(SEEN), parse), parse


def test_observations_are_parsed_once_when_they_are_read():
    lazy, parse = make_lazy()
    assert len(lazy) == 4 and lazy and "4" in repr(lazy)
    assert lazy == lazy and lazy != SEEN[:2]
    parse.assert_not_called()
    assert list(lazy) == list(lazy) == list(SEEN)
    assert lazy[1] is SEEN[1] and lazy[-1] is SEEN[-1] and lazy[1:3] == SEEN[1:3]
    assert SEEN[2] in lazy and lazy.index(SEEN[2]) == 2
    parse.assert_called_once()


def test_lazy_observations_equal_the_tuple_of_them():
    lazy, _ = make_lazy()
    assert lazy == SEEN and lazy == make_lazy()[0] and hash(lazy) == hash(SEEN)
    assert lazy != (*SEEN[:3], SEEN[0]) and lazy != list(SEEN)
    profiles = [Profile(Device("board"), "", "", "measured", seen) for seen in (lazy, SEEN)]
    assert profiles[0] == profiles[1] and profiles[0].to_dict() == profiles[1].to_dict()
    assert Profile.from_dict(profiles[0].to_dict()).observations == SEEN
    lazy = LazyObservations(4, partial(tuple, SEEN))
    for other in (pickle.loads(pickle.dumps(lazy)), copy.deepcopy(lazy)):  # noqa: S301
        assert other == SEEN


def test_summary_is_made_once_and_without_parsing_if_it_is_known():
    summary = summarise_observations(SEEN)
    assert (summary.count, summary.units) == (4, {"ab": 4})
    assert summary.runs == {"run 1": 2, "run 0": 2}
    assert (summary.device_time_s, summary.latest_at_s) == (2.0, 14.0)
    assert summary.setups == ()  # an idle device has no setup
    assert summarise_observations(()).latest_at_s == 0.0
    lazy, parse = make_lazy()
    assert summarise_observations(make_lazy()[0]) == summary
    lazy.summary = summary
    assert summarise_observations(lazy) is summary and not parse.called


def make_fits():
    decoders = {"flops": Mock(return_value={"slope": 1}), "forest": Mock(return_value={})}
    return StoredFits(decoders, {"flops": 7}), decoders


def test_a_fit_is_decoded_once_when_it_is_asked_for():
    fits, decoders = make_fits()
    assert set(fits) == {"flops", "forest"} and len(fits) == 2 and "flops" in fits
    assert "forest" in repr(fits)
    assert not decoders["flops"].called
    assert fits["flops"] == fits.get("flops") == {"slope": 1}
    assert (decoders["flops"].call_count, decoders["forest"].call_count) == (1, 0)
    assert fits.get("none") is None
    assert fits == {"flops": {"slope": 1}, "forest": {}}
    assert fits != {"flops": {"slope": 2}, "forest": {}}


def test_fits_are_merged_without_decoding_and_know_their_observations():
    fits, decoders = make_fits()
    merged = merge_fits(fits, {"forest": {"trees": 3}, "other": {}})
    assert not decoders["flops"].called
    assert find_fit_count(merged, "flops") == 7
    assert find_fit_count(merged, "forest") is find_fit_count({"flops": {}}, "flops") is None
    assert merged == {"flops": {"slope": 1}, "forest": {"trees": 3}, "other": {}}
    profile = Profile(Device("board"), "", "", "measured", fits={"forest": {}})
    fitted = profile.add_fits({"flops": {"slope": 1}})
    assert fitted.fits == {"flops": {"slope": 1}, "forest": {}}
    assert find_fit_count(fitted.fits, "flops") == 0


# -- data sheets and estimates ------------------------------------------------------------------

SHEET = DataSheet(
    name="card",
    title="A card",
    units=40,
    clock_hz=1.6e9,
    flops_per_s={"fp32": 8e12, "fp16": 65e12, "int8": 130e12},
    bytes_per_s=320e9,
    memory_bytes=16 * 2**30,
    power_limit_w=70.0,
)


def test_peaks_by_the_precision_of_a_setup():
    assert DataSheet.from_dict(SHEET.to_dict()) == SHEET
    assert SHEET.find_peak("fp16") == 65e12
    assert SHEET.find_peak("int8_dynamic") == 130e12
    # Without TF32 units, PyTorch computes in fp32.
    assert SHEET.find_peak("tf32") == SHEET.find_peak("fp32") == 8e12
    with pytest.raises(InputError, match="bf16"):
        SHEET.find_peak("bf16")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"power_limit_w": 0.0}, "power_limit_w"),
        ({"power_limit_w": float("nan")}, "finite"),
        ({"flops_per_s": {}}, "flops_per_s"),
        ({"flops_per_s": {"fp8": 1e12}}, "fp8"),
        ({"flops_per_s": {"fp32": 1.1e16}}, "FLOP/s"),
        ({"flops_per_s": {"fp32": float("nan")}}, "nan"),
        ({"flops_per_s": {"fp32": 8e12, "fp16": 9e15}}, "70 W"),
        ({"clock_hz": 1e6}, "per unit and cycle"),
        ({"bytes_per_s": 9e13}, "memory"),
        ({"idle_w": 71.0}, "idle_w"),
        ({"units": 0}, "units"),
    ],
)
def test_figures_beyond_physics_are_refused(changes, named):
    with pytest.raises(InputError, match=named):
        replace(SHEET, **changes)


ESTIMATE = Estimate(
    energy_j=2.0,
    interval_j=(1.0, 4.0),
    level=0.95,
    duration_s=0.1,
    peak_memory_bytes=100,
    layers=(LayerEstimate("h.0.fc", "linear", 1.0), LayerEstimate("h.1.fc", "linear", 1.0)),
    unseen_share=0.0,
    provenance="measured",
    covers="gpu",
    device="board",
    estimator="additive",
)


def test_whether_a_step_fits_is_known_if_both_sizes_are():
    sizes = [(100, 100, True), (101, 100, False), (100, 0, None), (0, 100, None)]
    for needed, available, fits in sizes:
        estimate = replace(ESTIMATE, peak_memory_bytes=needed, device_memory_bytes=available)
        assert estimate.fits_memory is fits


def test_an_estimate_survives_json_and_may_lack_newer_fields():
    blocks = (BlockEstimate("h.0–1", 2, 1, 2.0, (0, 1)),)
    full = replace(ESTIMATE, blocks=blocks, runtime="torch-2.11.0", notes=("One.", "Two."))
    for estimate in (ESTIMATE, full):
        assert Estimate.from_dict(estimate.to_dict()) == estimate
    data = ESTIMATE.to_dict()
    for name in ("blocks", "device_memory_bytes", "runtime", "notes"):
        del data[name]
    assert Estimate.from_dict(data) == ESTIMATE
