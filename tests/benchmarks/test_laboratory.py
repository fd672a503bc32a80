"""Rows of the laboratory file as observations: synthetic ones, and real ones if given."""

import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest

from joulecast.kinds import check_network, network_work
from joulecast.variants import match_precision, read_isolated_part, read_variant, split_blocks

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "laboratory" / "run.py"
DATA = os.environ.get("JOULECAST_LAB_DATA", "")
SEEN = {"run": 4, "gs": 0.004, "es": 0.005, "ej": 2.0, "gj": 1.9, "issmin": 0.001}
PLAIN = [["cin", 3, 8, 32, 1], ["chid", 8, 5, 16, 1], ["chid", 5, 7, 8, 0], ["cfc", 7, 8]]
RESIDUAL = [["stem", 8, 32], ["basic", 8, 8, 1, 8], ["basic", 8, 24, 2, 8], ["rhead", 24, 4]]
NETS = [("B", PLAIN), ("R", RESIDUAL)]


@pytest.fixture(scope="module")
def lab():
    found = importlib.util.spec_from_file_location("laboratory", SCRIPT)
    module = importlib.util.module_from_spec(found)
    sys.modules["laboratory"] = module  # dataclasses look up their module there
    found.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def rows():
    return json.loads(Path(DATA).read_text())["rows"]


def make_row(family, tag, layers, **more):
    return {"fam": family, "type": tag, "tag": tag, "layers": layers, **SEEN, **more}


@pytest.mark.parametrize(("family", "layers"), NETS)
def test_network_is_the_sum_of_its_isolated_pieces(lab, family, layers):
    """Each isolated piece equals the part that splitting the whole network gives."""
    net = lab.read_eager(make_row(family, "full", layers), energy=True).trial
    check_network(net.network)
    isolated = [lab.read_graph(make_row(family, "tp", [words], k=4)).trial for words in layers]
    for trial in isolated:
        check_network(trial.network)
    places = split_blocks(net.network)
    assert len(places) == len(layers)
    assert [read_isolated_part(trial) for trial in isolated] == [
        match_precision(place.part, net.setup) for place in places
    ]
    flops = [network_work(trial.network, net.setup).total.flops for trial in isolated]
    assert sum(flops) == pytest.approx(network_work(net.network, net.setup).total.flops)


def test_rows_without_energy_are_probes_and_copies_are_counted(lab):
    row = make_row("B", "tp", [["chid", 8, 5, 16, 1]], k=4)
    assert lab.read_graph(row).energy_j == SEEN["gj"]
    del row["gj"]
    probe = lab.read_graph(row)
    assert probe.energy_j is None
    assert probe.duration_s == SEEN["gs"]
    how = probe.trial.execution
    assert (how.mode, how.copies, how.upstream) == ("graph", 4, "random")
    head = lab.read_graph(make_row("B", "iso", [["cfc", 7, 8]], k=8))
    assert head.trial.execution.upstream == "loss"


def test_host_rows_have_time_and_no_energy(lab):
    variant = make_row("B", "hid", [*PLAIN[:2], ["cfc", 5, 8]])
    rows = [variant, make_row("B", "full", PLAIN), {**variant, "run": 3}]
    (host,) = lab.list_host(rows, "B")
    assert (host.energy_j, host.duration_s, host.issue_s) == (None, SEEN["es"], SEEN["issmin"])


def test_variants_of_the_paper_are_recognised(lab):
    """Shallow nets of the plain family are variants; residual nets are not."""
    for layers in (PLAIN[3:], [PLAIN[0], ["cfc", 8, 16]], [*PLAIN[:2], ["cfc", 5, 8]]):
        network = lab.make_network(make_row("B", "hid", layers))
        check_network(network)
        assert len(read_variant(network)) == len(layers)
    assert read_variant(lab.make_network(make_row("R", "hid", RESIDUAL))) is None


def test_no_method_is_fitted_to_a_whole_network(lab):
    """Rows of whole nets and of the earlier meter are never used."""
    for method in lab.METHODS.values():
        assert not {"full", "xsess", "part", "bench", "long"} & set(method.tags)
    rows = [make_row("B", tag, PLAIN) for tag in ("full", "xsess", "part", "bench", "long")]
    rows += [make_row("B", "iso", [["cfc", 7, 8]], k=8, run=3)]
    for method in lab.METHODS.values():
        assert method.list_observations(rows, "B") == []


@pytest.mark.skipif(not DATA, reason="JOULECAST_LAB_DATA is not set")
class TestRealRows:
    def test_every_type_of_row_is_read(self, lab, rows):
        types = {}
        for row in rows:
            if row["run"] != lab.EARLIER_METER_RUN and row["type"] != "long":
                types.setdefault((row["fam"], row["tag"]), row)
        assert {tag for _, tag in types} >= {"idle", "iso", "iso2", "tp", "tpiso", "full", "hid"}
        for (family, tag), row in types.items():
            if tag == "idle":
                assert 50 < lab.read_idle(row).energy_j < 200
                continue
            check_network(lab.make_network(row))
            if "gs" in row:
                assert lab.read_graph(row).trial.execution.copies == row.get("k", 1)
            if "ej" in row:
                seen = lab.read_eager(row, energy=True)
                assert (seen.energy_j, seen.duration_s) == (row["ej"], row["es"])
            assert lab.make_network(row).layers, (family, tag)

    @pytest.mark.parametrize(("family", "nets"), [("B", 20), ("R", 18), ("A", 10)])
    def test_repeats_are_the_same_network(self, lab, rows, family, nets):
        found = lab.select_rows(rows, family, ("full",))
        assert len({lab.make_network(row) for row in found}) == nets < len(found)

    @pytest.mark.parametrize("family", ["B", "R"])
    def test_probes_are_parts_of_the_test_networks(self, lab, rows, family):
        setup = lab.SETUPS[family]
        parts = {
            match_precision(place.part, setup)
            for row in lab.select_rows(rows, family, ("full",))
            for place in split_blocks(lab.make_network(row))
        }
        probes = [lab.read_graph(row).trial for row in lab.select_rows(rows, family, ("tp",))]
        assert len(probes) > 90
        assert {read_isolated_part(trial) for trial in probes} <= parts
