"""Numbers, setups, tables and fronts as people read them; plots with their values as a table."""

import io
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecast.cli.commands import write_json
from joulecast.records import Setup
from joulecast.system.errors import FileError, InputError
from joulecast.system.units import format_duration, format_energy, format_interval
from joulecast.views import plot_kinds
from joulecast.views.fronts import find_front
from joulecast.views.plots import draw, make_svg, save_plots
from joulecast.views.report import Report, make_table
from joulecast.views.style import ESTIMATORS, SPARE_COLOURS, choose_colours, choose_markers
from joulecast.views.terminal import make_console, print_report
from joulecast.views.words import (
    begin_sentence,
    describe_setup,
    explain_not_included,
    format_with_interval,
    list_setup_options,
    make_bar,
    plural,
    shorten,
    shorten_path,
)

INFERENCE = Setup(batch=1, phase="inference")
NPU = replace(INFERENCE, threads=2, processor="NPU", cuda_graphs=True, precision="int8")
ENERGY = (2.07, (1.87, 2.29), 0.95)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        # A shared unit is written once.
        (format_interval((1.87, 2.29), format_energy), "1.87–2.29 J"),
        (format_interval((0.9, 1.1), format_energy), "900 mJ – 1.10 J"),
        (format_interval((70.0, 200.0), format_duration), "1 min 10 s – 3 min 20 s"),
        (format_with_interval(*ENERGY, "measured"), "2.07 J (95 % interval 1.87–2.29 J)"),
        (
            format_with_interval(*ENERGY, "simulated"),
            "2.07 J (simulated, 95 % interval 1.87–2.29 J)",
        ),
        (plural(1, "net"), "1 net"),
        (plural(1200, "net"), "1,200 nets"),
        (shorten("abcdef", 4), "abc…"),
        (shorten("abc", 4), "abc"),
        (shorten_path("stages.0.layer.1.conv", 14), "….layer.1.conv"),
        (shorten_path("layer.1", 14), "layer.1"),
        (make_bar(0.5, 4), "██"),
        (make_bar(0.0), ""),
        (begin_sentence(Setup()), "A step"),
        (begin_sentence(INFERENCE), "An inference"),
        (begin_sentence(replace(INFERENCE, batch=8)), "An inference of 8 samples"),
        (explain_not_included(INFERENCE), "Not included: loading and preparing inputs."),
    ],
)
def test_phrases(said, expected):
    assert said == expected


@pytest.mark.parametrize(
    ("setup", "words", "options"),
    [
        (Setup(), "batch 32, sgd, fp32", "--batch 32"),
        (
            Setup(8, loss="mse", optimizer="adam"),
            "batch 8, adam, fp32, mse loss",
            "--batch 8 --optimizer adam --loss mse",
        ),
        # Inference has no loss, whatever the setup says.
        (replace(INFERENCE, loss="own"), "batch 1, inference, fp32", "--batch 1 --inference"),
        (
            NPU,
            "batch 1, inference, int8, 2 threads, NPU, CUDA graphs",
            "--batch 1 --precision int8 --threads 2 --processor NPU --cuda-graphs --inference",
        ),
    ],
)
def test_setup_in_words_and_options(setup, words, options):
    assert (describe_setup(setup), list_setup_options(setup)) == (words, options)


def test_tables_shorten_text_but_not_numbers(monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    stream = io.StringIO()
    table = make_table(("layer", ">energy"), [("a" * 40, "123456789 J")])
    print_report(Report("", (table,)), make_console(stream))
    lines = stream.getvalue().splitlines()
    assert max(map(len, lines)) <= 30 and "123456789 J" in lines[2] and "…" in lines[2]


NUMBERS = st.integers(0, 9)


@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=12), st.randoms())
def test_front_is_not_dominated_in_any_order(pairs, random):
    marked = dict(zip(pairs, find_front(pairs), strict=True))
    for pair, is_best in marked.items():
        dominated = any(a <= pair[0] and b <= pair[1] and (a, b) != pair for a, b in pairs)
        assert is_best != dominated
    random.shuffle(pairs)
    assert marked == dict(zip(pairs, find_front(pairs), strict=True))


def test_json_that_cannot_be_written_is_refused():
    with pytest.raises(FileError, match="give another --out"):
        write_json("/proc/no/where.json", {})


AXIS = tuple(float(width) for width in range(1, 20, 3))
POINTS = tuple(plot_kinds.CurvePoint((width,), 1.1 * width, width) for width in (1.0, 7.0))
LINE = plot_kinds.SampledCurve(
    "linear", ("cin",), (AXIS,), AXIS, AXIS, POINTS, next_point=((4.0,), 4.0)
)
MAP = plot_kinds.SampledCurve(
    "conv2d",
    ("cin", "cout"),
    (AXIS, AXIS),
    tuple(x * y for x in AXIS for y in AXIS),
    tuple(x for x in AXIS for _ in AXIS),
    (plot_kinds.CurvePoint((1.0, 4.0), 4.0, 5.0),),
)
ROWS = [
    plot_kinds.ScoredEstimate(f"net {j}", name, j, j * factor, (0.9 * j, 2 * j))
    for name, factor in (("additive", 1.02), ("flops", 40.0))
    for j in (1.0, 2.0, 90.0)
]
MOMENTS = [(float(at), at, 1 / (1 + at)) for at in range(9)]
KINDS = {
    "line": lambda: plot_kinds.plot_curve("line", LINE, "simulated"),
    "map": lambda: plot_kinds.plot_curve("map", MAP, "simulated"),
    "agreement": lambda: plot_kinds.plot_estimates(ROWS, "simulated"),
    "error-shares": lambda: plot_kinds.plot_error_distribution(ROWS, "simulated"),
    "errors": lambda: plot_kinds.plot_mape_bars({"additive": 2.0, "flops": 99.0}, 1.0, "simulated"),
    "error-time": lambda: plot_kinds.plot_error_by_time({"additive": (9.0, 2.0)}, "simulated"),
    "profiling-time": lambda: plot_kinds.plot_profiling_time({"additive": 9.0}, "simulated"),
    "time-energy": lambda: plot_kinds.plot_energy_by_time({"x": [("n", 1.0, 2.0)]}, "simulated"),
    "campaign": lambda: plot_kinds.plot_campaign(MOMENTS, "simulated"),
    "observations": lambda: plot_kinds.plot_observations({"x": [1e9, 1e9 + 8000]}, "simulated"),
}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_is_drawn_within_a_strict_policy(name):
    plot = KINDS[name]()
    assert plot.name == name and plot.title.endswith("(simulated)")
    assert plot.data is not None and plot.data.rows
    assert all(len(row) == len(plot.data.columns) for row in plot.data.rows)
    svg = make_svg(plot)
    # Style attributes and elements, scripts and addresses would all be refused.
    assert svg.startswith("<svg") and "style" not in svg and "<script" not in svg
    assert "mathdefault" not in svg
    assert "currentColor" in svg and f'id="{name}-' in svg
    assert make_svg(plot) == svg
    for axes in draw(plot).axes:
        assert axes.get_xlabel() or axes.get_ylabel() or not axes.get_label().startswith("<sub")


def find_labels(plot):
    return [text.get_text() for text in draw(plot).axes[0].get_legend().get_texts()]


def test_marks_of_curves():
    assert find_labels(KINDS["line"]()) == ["95 % interval", "prediction", "measured", "next point"]
    assert LINE.points[0].error_percent == pytest.approx(100 / 1.1 - 100)


def test_values_that_differ_much_have_a_logarithmic_axis():
    assert draw(KINDS["agreement"]()).axes[0].get_xscale() == "log"
    assert draw(KINDS["errors"]()).axes[0].get_yscale() == "log"
    assert draw(KINDS["error-time"]()).axes[0].get_yscale() == "linear"


def test_what_cannot_be_plotted_is_refused():
    with pytest.raises(InputError, match="net is 0"):
        plot_kinds.ScoredEstimate("net is 0", "additive", 0.0, 1.0, (0.0, 1.0))


@pytest.mark.parametrize("suffix", [".svg", ".png", ".pdf", ".html"])
def test_files(tmp_path, suffix):
    plots = [KINDS["line"](), KINDS["campaign"]()]
    (one,) = save_plots(plots[:1], tmp_path / f"one{suffix}")
    several = save_plots(plots, tmp_path / f"some{suffix}")
    names = ["some.html"] if suffix == ".html" else [f"some-line{suffix}", f"some-campaign{suffix}"]
    assert [path.name for path in several] == names
    head = {".svg": b"<?xml", ".png": b"\x89PNG", ".pdf": b"%PDF", ".html": b"<!doctype"}[suffix]
    assert one.read_bytes().lstrip().startswith(head)
    with pytest.raises(FileError, match="cannot write"):
        save_plots(plots, one / f"x{suffix}")


def test_estimators_keep_their_colours_and_others_differ():
    names = ["additive", "new", "newer", "flops"]
    colours, markers = choose_colours(names), choose_markers(names)
    assert colours["additive"] == ESTIMATORS["additive"][0] and colours["new"] == SPARE_COLOURS[0]
    assert len(set(colours.values())) == 4 and markers["flops"] != markers["additive"]


def test_matplotlib_is_imported_when_something_is_drawn():
    code = (
        "import sys, joulecast.views.plot_kinds, joulecast.views.plots, joulecast.features.report\n"
        "assert not {'matplotlib', 'numpy', 'jinja2'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent)
