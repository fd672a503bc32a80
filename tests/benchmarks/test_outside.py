"""Benchmark of nets outside the families: what it measures, and what estimators may use."""

from argparse import Namespace

import pytest

from joulecast.families import make_family
from joulecast.features.evaluation import EvaluationLog
from joulecast.features.measurers import open_measurer
from joulecast.features.options import MeasureOptions
from joulecast.records import OWN_NET, Device, Observation, Profile, Setup, Trial

NAMES = ("nets", "net_pieces", "outside_baselines", "scoring", "outside_run", "outside")


@pytest.fixture(scope="module")
def bench(import_accuracy):
    with import_accuracy(*NAMES) as found:
        yield found


def list_entries(bench, *names):
    entries = [bench.nets.Entry(name, None, 8, "fp32", "sgd") for name in names]
    return entries, {name: make_family(name) for name in names}


@pytest.fixture(scope="module")
def case(bench):
    entries, networks = list_entries(bench, "cnn5", "lenet5", "resnet18")
    return entries, networks, bench.net_pieces.list_pieces(entries, networks)


def make_run(bench, case, measurer, seen=()):
    entries, networks, pieces_by_key = case
    modes = measurer.runtime.modes
    measured_pieces = bench.net_pieces.MeasuredPieces(
        "graph" if "graph" in modes else "eager", seen
    )
    log = EvaluationLog("outside", ())
    run = bench.outside_run.OutsideRun(
        measurer,
        log,
        entries,
        networks,
        pieces_by_key,
        measured_pieces,
        [],
        "simulated:3",
        tuple(seen),
    )
    run.until_s = float("inf")
    return run


def measure(bench, case, seen=()):
    with open_measurer(MeasureOptions("simulated:3", rounds=1)) as measurer:
        run = make_run(bench, case, measurer, seen)
        run.measure_kinds(1e9)
        run.time_pieces()
    assert not run.failures
    return run


def test_every_kind_is_measured_twice_and_every_piece_is_timed_once(bench, case):
    run = measure(bench, case)
    labels = [net_piece.piece.label for net_piece in case[2].values()]
    for label, keys in run.measured_pieces.energy_keys.items():
        assert len(keys) == min(2, labels.count(label))
    assert set(run.measured_pieces.energy_keys) == set(labels)
    assert run.measured_pieces.timed_keys == set(case[2])
    energy_runs = run.log.list_for(bench.scoring.ENERGY_ROLE)
    probes = run.log.list_for(bench.scoring.PROBE_ROLE)
    pieces = sum(map(len, run.measured_pieces.energy_keys.values()))
    assert len(energy_runs) == pieces + 1  # the idle device
    assert len(probes) == len(case[2]) - pieces


def test_energy_probes_are_few_and_of_isolated_pieces(bench, case):
    with open_measurer(MeasureOptions("simulated:3", rounds=1)) as measurer:
        run = make_run(bench, case, measurer)
        run.measure_kinds(1e9)
        run.time_pieces()
        run.time_host_issue()
        before = run.log.list_all()
        run.measure_uncertain_pieces()
        made = run.log.list_all()[len(before) :]
        assert 0 < len(made) <= bench.outside_run.ENERGY_PROBES_PER_NET * len(case[0])
        assert all(seen.energy_j and seen.trial.execution.upstream for seen in made)
        keys = {bench.net_pieces.find_piece(seen, run.measured_pieces.mode).key for seen in made}
        assert len(keys) == len(made) and keys <= set(case[2])
        run.measure_uncertain_pieces()
        assert run.count_energy_probes() <= bench.outside_run.ENERGY_PROBES_PER_NET * len(case[0])


def test_known_pieces_are_not_measured_again(bench, case):
    known = measure(bench, case).log.list_all()
    again = measure(bench, case, known)
    assert [seen.trial.network.layers for seen in again.log.list_all()] == [()]


def test_device_times_of_nets_add_up_to_the_total(bench, case):
    entries, networks, pieces_by_key = case
    log = measure(bench, case).log
    made = bench.scoring.Case(tuple(entries), networks, pieces_by_key, log, (), ())
    shared = [bench.scoring.share_device_seconds(made, entry.name) for entry in entries]
    for role in (bench.scoring.ENERGY_ROLE, bench.scoring.PROBE_ROLE):
        work = [seen.cost_s for seen in log.list_for(role) if seen.trial.network.layers]
        assert sum(share[role] for share in shared) == pytest.approx(sum(work))


def make_observation(network, run, source=""):
    trial = Trial(network, Setup(batch=8))
    return Observation(trial, 1.0, duration_s=1.0, run=run, source=source)


@pytest.mark.parametrize(("which", "left"), [("test", {"outside.dev.test1", "x"}), ("dev", {"x"})])
def test_observations_of_the_table_and_of_test_are_not_known(bench, which, left):
    other, own = make_family("cnn5"), make_family("lenet5")
    runs = ("outside.test1", "outside.additive", "outside.dev.test1", "x")
    seen = [make_observation(other, run) for run in runs]
    seen += [make_observation(own, "y"), make_observation(other, "z", OWN_NET)]
    profile = Profile(Device("d"), "r", "gpu", "measured", tuple(seen))
    networks = {"mine": own, other.name: own}
    found = bench.outside.select_known(Namespace(which=which), [profile], networks)
    assert {one.run for one in found} == left


def test_no_net_is_in_two_tables(bench):
    names = [entry.name for table in bench.nets.TABLES.values() for entry in table]
    assert len(set(names)) == len(names)
    assert len(bench.nets.TEST) >= 14
