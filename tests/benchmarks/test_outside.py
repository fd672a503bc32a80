"""The benchmark of nets outside all families: what is measured for it, and what it may learn."""

from argparse import Namespace

import pytest

from joulecast.api.measurers import open_measurer
from joulecast.api.options import MeasureOptions
from joulecast.families import make_family
from joulecast.records import OWN_NET, Device, Observation, Profile, Setup, Trial
from joulecast.uses.evaluate.evaluation_log import EvaluationLog

NAMES = ("nets", "reading", "judging", "outside")


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
    return entries, networks, bench.reading.list_parcels(entries, networks)


def make_work(bench, case, rig, seen=()):
    entries, networks, parcels = case
    modes = rig.runtime.modes
    tally = bench.reading.Tally("graph" if "graph" in modes else "eager", seen)
    book = EvaluationLog("outside", ())
    work = bench.outside.Work(
        rig, book, entries, networks, parcels, tally, [], "simulated:3", tuple(seen)
    )
    work.until_s = float("inf")
    return work


def measure(bench, case, seen=()):
    with open_measurer(MeasureOptions("simulated:3", rounds=1)) as rig:
        work = make_work(bench, case, rig, seen)
        work.look_at_kinds(1e9)
        work.probe_pieces()
    assert not work.troubles
    return work


def test_every_kind_is_looked_at_twice_over_all_nets_and_every_piece_is_timed_once(bench, case):
    work = measure(bench, case)
    labels = [parcel.piece.label for parcel in case[2].values()]
    for label, keys in work.tally.joules.items():
        assert len(keys) == min(2, labels.count(label))
    assert set(work.tally.joules) == set(labels)
    assert work.tally.seconds == set(case[2])
    looks = work.book.list_for(bench.judging.LOOKS)
    probes = work.book.list_for(bench.judging.PROBES)
    pieces = sum(map(len, work.tally.joules.values()))
    assert len(looks) == pieces + 1  # the waiting device
    assert len(probes) == len(case[2]) - pieces


def test_doubts_are_few_and_about_pieces_alone(bench, case):
    with open_measurer(MeasureOptions("simulated:3", rounds=1)) as rig:
        work = make_work(bench, case, rig)
        work.look_at_kinds(1e9)
        work.probe_pieces()
        work.probe_host()
        before = work.book.list_all()
        work.clear_doubts()
        made = work.book.list_all()[len(before) :]
        assert 0 < len(made) <= bench.outside.DOUBTS * len(case[0])
        assert all(seen.energy_j and seen.trial.execution.upstream for seen in made)
        keys = {bench.reading.find_piece(seen, work.tally.mode).key for seen in made}
        assert len(keys) == len(made) and keys <= set(case[2])
        work.clear_doubts()
        assert work.count_doubts() <= bench.outside.DOUBTS * len(case[0])


def test_what_is_known_is_not_measured_again(bench, case):
    known = measure(bench, case).book.list_all()
    again = measure(bench, case, known)
    assert [seen.trial.network.layers for seen in again.book.list_all()] == [()]


def test_seconds_of_nets_add_up_to_what_the_device_took(bench, case):
    entries, networks, parcels = case
    book = measure(bench, case).book
    made = bench.judging.Case(tuple(entries), networks, parcels, book, (), ())
    shared = [bench.judging.share_seconds(made, entry.name) for entry in entries]
    for who in (bench.judging.LOOKS, bench.judging.PROBES):
        work = [seen.cost_s for seen in book.list_for(who) if seen.trial.network.layers]
        assert sum(share[who] for share in shared) == pytest.approx(sum(work))


def see(network, run, source=""):
    trial = Trial(network, Setup(batch=8))
    return Observation(trial, 1.0, duration_s=1.0, run=run, source=source)


@pytest.mark.parametrize(("which", "left"), [("test", {"outside.dev.test1", "x"}), ("dev", {"x"})])
def test_nothing_made_for_a_table_is_known_to_it_and_nothing_of_test_to_anybody(bench, which, left):
    other, own = make_family("cnn5"), make_family("lenet5")
    runs = ("outside.test1", "outside.additive", "outside.dev.test1", "x")
    seen = [see(other, run) for run in runs]
    seen += [see(own, "y"), see(other, "z", OWN_NET)]
    profile = Profile(Device("d"), "r", "gpu", "measured", tuple(seen))
    networks = {"mine": own, other.name: own}
    found = bench.outside.choose_known(Namespace(which=which), [profile], networks)
    assert {one.run for one in found} == left


def test_no_net_is_in_both_tables(bench):
    names = [entry.name for table in bench.nets.TABLES.values() for entry in table]
    assert len(set(names)) == len(names)
    assert len(bench.nets.TEST) >= 14
