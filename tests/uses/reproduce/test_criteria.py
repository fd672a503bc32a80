"""Every criterion can hold and can fail, and says so with the figures that decide it."""

from __future__ import annotations

import pytest

from joulecast.errors import MissingError
from joulecast.uses.reproduce import (
    HELD,
    NOT_HELD,
    UNTESTED,
    depth_errors,
    family_errors,
    layer_surfaces,
    profiling_times,
    random_networks,
    surface_errors,
    transformer_errors,
)
from joulecast.uses.reproduce.experiment import Findings
from joulecast.uses.reproduce.paper_settings import AMPERE, FLOPS, OURS
from joulecast.uses.reproduce.statistics import (
    compute_errors_percent,
    correlate,
    correlate_ranks,
    fit_line,
    fit_proportional,
)


def make_net(flops, flops_error, ampere_error, name="net", **more):
    """Return a network of 1 J with the errors of two estimators, as shares."""
    estimates_j = {FLOPS: 1.0 + flops_error, AMPERE: 1.0 + ampere_error, OURS: 1.01}
    return {
        "name": name,
        "flops": flops,
        "duration_s": 1.0,
        "measured_j": 1.0,
        "estimates_j": estimates_j,
        **more,
    }


def test_fig7_needs_the_signs_of_the_paper_and_an_accurate_ampere():
    as_in_paper = [make_net(i, 0.3 - 0.06 * i, 0.05) for i in range(12)]
    verdict, finding, thirds = random_networks.judge(as_in_paper)
    assert verdict == HELD and "+21 % (median)" in finding and len(thirds) == 3
    other_way = [make_net(i, -0.3 + 0.06 * i, 0.05) for i in range(12)]
    verdict, finding, _ = random_networks.judge(other_way)
    assert verdict == NOT_HELD and "which is not what the paper found" in finding
    inaccurate = [make_net(i, 0.3 - 0.06 * i, 0.2 if i > 7 else 0.0) for i in range(12)]
    verdict, finding, _ = random_networks.judge(inaccurate)
    assert verdict == NOT_HELD and "at most 20.0 % in any third" in finding
    with pytest.raises(MissingError):
        random_networks.judge(as_in_paper[:8])


def test_fig8_needs_a_lower_and_a_small_mean_error():
    def make_families(flops_error, ampere_errors):
        return {
            name: {"nets": [make_net(1.0, flops_error, error)] * 3}
            for name, error in zip(("lenet5", "har"), ampere_errors, strict=True)
        }

    verdict, finding, mapes = family_errors.judge(make_families(0.4, (0.05, 0.1)))
    assert verdict == HELD and "AMPERE 7.5 %" in finding and "better in every family" in finding
    assert mapes["har"][AMPERE] == pytest.approx(10.0)
    verdict, finding, _ = family_errors.judge(make_families(0.4, (0.05, 0.5)))
    assert verdict == NOT_HELD and "worse than FLOPs for har" in finding
    verdict, _, _ = family_errors.judge(make_families(0.4, (0.2, 0.2)))
    assert verdict == NOT_HELD
    with pytest.raises(MissingError):
        family_errors.judge({})


def test_fig9_needs_a_lower_mean_and_most_networks():
    verdict, finding, share = transformer_errors.judge([make_net(1.0, 0.4, 0.1)] * 4)
    assert verdict == HELD and share == 1.0 and "closer than FLOPs for 4 of them" in finding
    # A lower mean by one network alone is not consistent.
    nets = [make_net(1.0, 0.1, 0.2)] * 3 + [make_net(1.0, 3.0, 0.2)]
    verdict, _, share = transformer_errors.judge(nets)
    assert verdict == NOT_HELD and share == 0.25
    with pytest.raises(MissingError):
        transformer_errors.judge([make_net(1.0, 0.4, 0.1)])


def test_fig10_needs_smaller_errors_that_do_not_grow_with_depth():
    errors = (0.05, 0.02, 0.06, 0.01, 0.05, 0.03)
    flat = [make_net(1.0, 0.4, e, depth=10 * i) for i, e in enumerate(errors, start=1)]
    verdict, finding, correlation = depth_errors.judge(flat)
    assert verdict == HELD and abs(correlation) <= 0.3 and "10 to 60 layers" in finding
    growing = [make_net(1.0, 0.4, 0.01 * i, depth=10 * i) for i in range(1, 7)]
    verdict, _, correlation = depth_errors.judge(growing)
    assert verdict == NOT_HELD and correlation == pytest.approx(1.0)
    worse = [{**net, **make_net(1.0, 0.01, 0.1)} for net in flat]
    assert depth_errors.judge(worse)[0] == NOT_HELD
    with pytest.raises(MissingError):
        depth_errors.judge(flat[:3])


def test_depths_are_those_of_the_names():
    names = ("resnet18", "resnet34", "resnet50", "resnet50:64,3,4,23,3", "resnet34:64,1,1,1,1")
    assert [depth_errors.count_depth(name) for name in names] == [18, 34, 50, 101, 10]


def make_surface(label, energy, error, size_j=1.0):
    """Return a surface whose energy is a function of both channels, and test errors as a share."""
    grid = [(float(a), float(b)) for a in (1, 8, 32, 64) for b in (1, 16, 64, 128)]

    def make_point(widths, share):
        measured_j = size_j * energy(*widths)
        return {
            "widths": list(widths),
            "measured_j": measured_j,
            "predicted_j": measured_j * (1 + share),
        }

    return {
        "label": label,
        "profiled": [make_point(widths, 0.0) for widths in grid],
        "tests": [make_point(widths, error) for widths in grid[::3]],
    }


def test_fig11_needs_a_bent_surface_that_is_smooth_for_large_images():
    def bend(cin, cout):
        return 1.0 + cin * cout / 500

    def level(cin, cout):
        return 1.0 + 0.1 * cin + 0.2 * cout

    large, small = make_surface("48x48", bend, 0.05), make_surface("12x12", bend, 0.2)
    verdict, finding = layer_surfaces.judge([large, small])
    assert verdict == HELD and "48x48: plane" in finding
    assert layer_surfaces.judge([small, large])[0] == NOT_HELD
    assert layer_surfaces.fit_plane_error(make_surface("", level, 0.0)) == pytest.approx(
        0, abs=1e-9
    )
    assert layer_surfaces.judge([make_surface("48x48", level, 0.05), small])[0] == NOT_HELD


def test_fig12_needs_a_small_relative_and_a_large_absolute_error():
    def energy(cin, cout):
        return 1.0 + cin * cout

    large = make_surface("48x48", energy, 0.05, size_j=10.0)
    small = make_surface("12x12", energy, 0.2, size_j=1.0)
    verdict, finding, rows = surface_errors.judge([large, small])
    assert verdict == HELD and rows[0]["mape_percent"] == pytest.approx(5.0) and "mJ" in finding
    tiny = make_surface("48x48", energy, 0.05, size_j=0.1)
    assert surface_errors.judge([tiny, small])[0] == NOT_HELD
    assert surface_errors.judge([{**large, "tests": small["tests"]}, large])[0] == NOT_HELD


def test_table1_needs_all_families_within_twenty_minutes():
    def make_rows(profiling_s):
        row = {"profiling_s": profiling_s, "fitting_s": 0.5, "points": 40, "is_known": True}
        return {AMPERE: row, OURS: {**row, "profiling_s": 20.0}}

    verdict, finding = profiling_times.judge({"lenet5": make_rows(60.0), "har": make_rows(900.0)})
    assert verdict == HELD and "har 900 + 0.5 s (40 points)" in finding and "ours 20 +" in finding
    assert profiling_times.judge({"har": make_rows(1200.0)})[0] == NOT_HELD
    with pytest.raises(MissingError):
        profiling_times.judge({})


def test_paper_seconds_are_those_of_its_table():
    assert all(len(row) == 4 for row in profiling_times.PAPER_SECONDS.values())
    assert sum(map(sum, profiling_times.PAPER_SECONDS.values())) == 22354


def test_statistics():
    assert correlate([1, 2, 3], [2, 4, 6]) == pytest.approx(1.0)
    assert correlate([1, 1, 1], [2, 4, 6]) == 0.0
    assert correlate_ranks([1, 2, 3, 4], [1, 8, 27, 64]) == pytest.approx(1.0)
    assert correlate_ranks([1, 2, 2, 3], [3, 2, 2, 1]) == pytest.approx(-1.0)
    line = fit_line([0, 1, 2], [1.0, 3.0, 5.0])
    assert (line.offset, line.slope, line.r_squared) == pytest.approx((1.0, 2.0, 1.0))
    assert fit_line([0, 1, 2, 3], [0, 9, 1, 7]).r_squared < 0.5
    assert fit_proportional([1, 2], [3, 6]) == pytest.approx(3.0)
    assert compute_errors_percent([2.0], [1.0]) == [100.0]


def test_findings_of_a_part_decide_nothing():
    found = Findings(HELD, "It was small.", {})
    assert found.mark_partial(4, 4, "families") == found
    partial = found.mark_partial(1, 4, "families")
    assert partial.verdict == UNTESTED
    assert partial.finding == "Only 1 of 4 families measured so far. It was small."
