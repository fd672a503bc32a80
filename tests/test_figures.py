"""Pictures: whatever is given is drawn, by both backends, and what is not measured says so."""

import html
import statistics
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecast.errors import FileError, InputError, MissingError
from joulecast.figures import (
    Judged,
    Lane,
    Priced,
    SampledCurve,
    Sized,
    Stay,
    Taken,
    Whole,
    draw_additivity,
    draw_agreement,
    draw_budget,
    draw_cost,
    draw_curve,
    draw_differences,
    draw_error_levels,
    draw_error_shares,
    draw_errors,
    draw_front,
    draw_guided_point,
    draw_profiling_time,
    draw_sizes,
    draw_time_energy,
    draw_timeline,
    join_pictures,
    make_html,
    make_png,
    make_svg,
    mape_percent,
    sample_curve,
    save_html,
    save_png,
    save_svg,
    to_plotly,
)
from joulecast.figures.marks import Band, Bars, Dots, Line, Spans, Surface, Tag
from joulecast.figures.picture import Axis, Panel, Picture
from joulecast.figures.style import COLOURS, SPARE_COLOURS, choose_colours, choose_shapes
from joulecast.gp.regression import fit_gp

ROWS = [
    Judged(
        f"{family}:{net}",
        estimator,
        taken,
        taken * off,
        (taken * off * 0.9, taken * off * 1.2),
        family,
    )
    for family, taken in (("lenet5", 0.004), ("cnn5", 2.0), ("lstm", 0.3))
    for net in (8, 16, 32)
    for estimator, off in (("subtractive", 0.9 + net / 200), ("flops", 2.0), ("mine", 1.01))
]
WHOLES = [
    Whole(
        f"{n} conv",
        0.2 + 0.3 * n,
        {"in": 0.1, **{f"conv{i}": 0.3 for i in range(n)}},
        0.5 * n,
        0.01,
    )
    for n in (1, 2, 3)
]
RUNS = {
    "guided": [[(10, 30.0), (20, 12.0), (30, 8.0)], [(10, 25.0), (20, 15.0), (30, 9.0)]],
    "random": [[(10, 40.0), (20, 22.0), (30, 18.0)]],
}
COSTS = {
    "subtractive": [(5.0, 40.0), (20.0, 22.0), (160.0, 4.0)],
    "mine": [(9.0, 12.0), (150.0, 3.9)],
    "mine too": [(9.0, 11.0), (150.0, 3.8)],
}
SIZES = {"linear": [Sized(c, 1e6 * c, 0.1 + 0.02 * (c // 8)) for c in (64, 8, 16, 32)]}
TAKEN = {"cnn5": [Taken("cnn5:8", 0.01, 2.0), Taken("cnn5:4", 0.006, 1.0), Taken("x", 0.02, 3.5)]}
TIMES = {"xavier": {"lenet5": 184.0, "har": 740.0}, "server": {"lenet5": 235.0}}


def sample(points, features, tests=None):
    values = [0.1 + 0.01 * sum(point) for point in points]
    return sample_curve(fit_gp(points, values, [1e-6] * len(points)), "a layer", features, tests)


NARROW = sample([(1,), (64,), (20,)], ["cin"], {(30.0,): 0.5, (50.0,): 0.6})
FULLER = sample([(1,), (64,), (20,), (43,)], ["cin"])
FLAT = sample([(1, 1), (64, 1), (1, 32), (64, 32), (30, 9)], ["cin", "cout"], {(9.0, 20.0): 0.3})

LANES = [
    Lane(
        "phone",
        (Stay("a", 0.0, 3600.0), Stay("b", 1800.0, 5400.0), Stay("a longer name", 5400.0, 9000.0)),
        ((0.0, 0.6), (3600.0, 0.4), (5400.0, 0.5), (9000.0, 0.3)),
        0.2,
        ((3600.0, 5400.0),),
    ),
    Lane("server", (Stay("c", 600.0, 700.0),)),
]

GALLERY = {
    "timeline": lambda **words: draw_timeline(LANES, **words),
    "agreement": lambda **words: draw_agreement(ROWS, **words),
    "errors": lambda **words: draw_errors(ROWS, noise_percent={"cnn5": 1.5}, **words),
    "levels": lambda **words: draw_error_levels(ROWS, noise_percent={"cnn5": 1.5}, **words),
    "shares": lambda **words: draw_error_shares(ROWS, **words),
    "budget": lambda **words: draw_budget(RUNS, **words),
    "cost": lambda **words: draw_cost(COSTS, floor_percent=0.7, **words),
    "times": lambda **words: draw_profiling_time(TIMES, **words),
    "additivity": lambda **words: draw_additivity(WHOLES, **words),
    "sizes": lambda **words: draw_sizes(SIZES, **words),
    "time and energy": lambda **words: draw_time_energy(TAKEN, **words),
    "curve": lambda **words: draw_curve(NARROW, **words),
    "surface": lambda **words: draw_curve(FLAT, **words),
    "differences": lambda **words: draw_differences(NARROW, **words),
    "flat differences": lambda **words: draw_differences(FLAT, **words),
    "guided": lambda **words: draw_guided_point(NARROW, FULLER, **words),
}
each_picture = pytest.mark.parametrize("draw", GALLERY.values(), ids=GALLERY)


@cache
def figure_of(draw):
    return to_plotly(draw())


def words_of(svg):
    """All that a person can read in an SVG, words broken over lines put together again."""
    texts = (
        "".join(found.itertext())
        for found in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    )
    return " ".join(" ".join(texts).split())


def marks_of(picture, kind):
    return [mark for panel in picture.panels for mark in panel.marks if isinstance(mark, kind)]


# ---------------------------------------------------------------------------------------------
# Both backends, every picture


@each_picture
def test_every_mark_is_a_trace_of_plotly_with_its_numbers(draw):
    picture = draw()
    traces = figure_of(draw).data
    marks = [mark for panel in picture.panels for mark in panel.marks]
    assert [trace.name for trace in traces] == [mark.name for mark in marks]
    for trace, mark in zip(traces, marks, strict=True):
        if isinstance(mark, Band):
            assert set(trace.y) == {*mark.low, *mark.high}
        elif isinstance(mark, Spans):
            assert np.array_equal(trace.base, mark.x) and np.array_equal(trace.y, mark.y)
            assert np.add(trace.base, trace.x) == pytest.approx(mark.end)
        else:
            assert np.array_equal(trace.x, mark.x)
            assert np.array_equal(trace.y, mark.y)


@each_picture
def test_every_series_and_axis_can_be_read_in_the_svg(draw):
    picture = draw()
    words = words_of(make_svg(picture))
    names = picture.series if len(picture.series) > 1 else ()
    axes = [axis for panel in picture.panels for axis in (panel.x, panel.y, panel.z) if axis]
    labels = [label for axis in axes for label in axis.labels]
    for said in (*names, *labels, *(axis.heading for axis in axes), picture.title, picture.about):
        assert " ".join(said.split()) in words


@each_picture
def test_every_series_is_once_in_the_legend_or_has_its_tag(draw):
    picture = draw()
    shown = [trace.name for trace in figure_of(draw).data if trace.showlegend]
    tagged = [mark.name for mark in marks_of(picture, Tag)]
    assert sorted([*shown, *tagged]) == sorted(picture.series)


@each_picture
def test_what_is_simulated_says_so(draw):
    picture = draw(provenance="simulated")
    assert "(simulated)" in to_plotly(picture).layout.title.text
    assert "(simulated)" in words_of(make_svg(picture))


@pytest.mark.parametrize("provenance", ["modelled", "imported"])
def test_and_so_does_whatever_else_is_not_measured(provenance):
    picture = draw_budget(RUNS, provenance=provenance)
    assert f"({provenance})" in to_plotly(picture).layout.title.text
    assert f"({provenance})" in words_of(make_svg(picture))


@each_picture
def test_what_is_measured_needs_no_word(draw):
    assert "measured)" not in figure_of(draw).layout.title.text


@each_picture
def test_title_and_about_are_the_callers(draw):
    picture = draw(title="A title of mine", about="and what it is about")
    layout = to_plotly(picture).layout
    assert "A title of mine" in layout.title.text
    assert layout.title.subtitle.text == "and what it is about"


@each_picture
def test_axes_have_titles_with_units(draw):
    for panel in draw().panels:
        for axis in (panel.x, panel.y):
            assert axis.labels or axis.title
        energies = [axis for axis in (panel.x, panel.y, panel.z) if axis and "energy" in axis.title]
        assert all(axis.heading.endswith("(J)") for axis in energies)


@pytest.mark.parametrize(
    "draw",
    [
        lambda: draw_agreement([]),
        lambda: draw_errors([]),
        lambda: draw_error_levels([]),
        lambda: draw_error_shares([]),
        lambda: draw_cost({}),
        lambda: draw_cost({"mine": []}),
        lambda: draw_budget({}),
        lambda: draw_budget({"guided": []}),
        lambda: draw_profiling_time({}),
        lambda: draw_profiling_time({"xavier": {}}),
        lambda: draw_additivity([]),
        lambda: draw_sizes({}),
        lambda: draw_sizes({"linear": []}),
        lambda: draw_time_energy({}),
        lambda: draw_differences(replace(NARROW, profiled=(), tests=())),
        lambda: SampledCurve("a layer", ("cin",), ((),), (), ()),
        lambda: join_pictures("none", []),
        lambda: save_html([], "unwritten.html"),
    ],
)
def test_nothing_to_draw_is_one_clear_error(draw):
    with pytest.raises(InputError, match="nothing to draw: give at least one of the"):
        draw()


@pytest.mark.parametrize(
    "name", ["$a_b^2$", "<b>bold</b>", "_hidden", "a & b", "\u7f51", "a\\b{c}"]
)
def test_odd_names_are_shown_as_they_are(name):
    picture = draw_budget({name: RUNS["guided"], "plain": RUNS["random"]}, about=name)
    assert name in words_of(make_svg(picture))
    assert [html.unescape(trace.name) for trace in to_plotly(picture).data].count(name) == 2


def test_svg_is_the_same_every_time_and_has_no_date():
    one, two = (make_svg(draw_curve(NARROW)) for _ in range(2))
    assert one == two
    assert "<dc:date>" not in one


def test_files_are_written_where_they_shall_be(tmp_path):
    picture = draw_errors(ROWS)
    assert save_svg(picture, tmp_path / "a.svg").read_text() == make_svg(picture)
    assert save_png(picture, tmp_path / "a.png").read_bytes() == make_png(picture)
    assert make_png(picture).startswith(b"\x89PNG")
    assert "Mean error" in save_html(picture, tmp_path / "a.html").read_text()


def test_a_place_that_cannot_be_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("no folder")
    for save in (save_svg, save_png, save_html):
        with pytest.raises(FileError, match="cannot be written"):
            save(draw_budget(RUNS), tmp_path / "file" / "a")


def test_folders_are_made(tmp_path):
    assert save_svg(draw_budget(RUNS), tmp_path / "new" / "a.svg").exists()


def test_perfect_estimates_can_be_drawn():
    rows = [Judged(name, "additive", 1.0, 1.0) for name in "ab"]
    for draw in (draw_agreement, draw_errors, draw_error_levels, draw_error_shares):
        assert to_plotly(draw(rows)).data
        assert words_of(make_svg(draw(rows)))


def test_a_page_is_self_contained_and_has_the_library_once(tmp_path):
    pictures = [draw_errors(ROWS), draw_budget(RUNS, title="</script><b>")]
    page = save_html(pictures, tmp_path / "all.html").read_text(encoding="utf-8")
    library = len(make_html(pictures[0])) - len(make_html(pictures[0], library=False))
    assert library < len(page) < 1.1 * library
    tags = [tag for tag in page.split("<") if tag.startswith(("script ", "link ", "img "))]
    assert not [tag for tag in tags if "src=" in tag.split(">")[0] or "href=" in tag.split(">")[0]]
    assert 'id="picture-1"' in page
    assert 'id="picture-2"' in page
    assert "</script><b>" not in page


def test_importing_is_cheap():
    code = (
        "import sys, joulecast.figures\n"
        "loaded = {'plotly', 'matplotlib', 'numpy', 'torch'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_matplotlib_svg_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingError, match=r"joulecast\[paper\]"):
        make_svg(draw_errors(ROWS))


# ---------------------------------------------------------------------------------------------
# Style and axes


@given(st.lists(st.sampled_from([*COLOURS, "guided", "random", "other"]), unique=True))
def test_an_estimator_has_its_colour_in_any_company(names):
    colours = choose_colours(names)
    assert {name: colours[name] for name in names if name in COLOURS} == {
        name: COLOURS[name] for name in names if name in COLOURS
    }
    assert len(set(colours.values())) == len(names)
    assert list(choose_shapes(names)) == names


def test_no_colour_is_given_twice():
    every = [*COLOURS.values(), *SPARE_COLOURS]
    assert len(set(every)) == len(every)


@given(st.floats(1e-9, 1e9), st.floats(2.0, 1e6))
def test_a_logarithmic_axis_marks_places_within_it(low, factor):
    axis = Axis("energy", "J", prefixes=True, log=True, low=low, high=low * factor)
    places = list(axis.ticks)
    assert places == sorted(places)
    assert all(low <= place <= low * factor for place in places)
    assert len(places) >= (1 if factor >= 10 else 0)
    assert len(set(axis.ticks.values())) == len(places)


@pytest.mark.parametrize(("largest", "log"), [(5.0, False), (500.0, True)])
def test_axes_are_logarithmic_where_values_span_decades(largest, log):
    rows = [Judged("a", "flops", 1.0, 1.1), Judged("b", "flops", largest, largest)]
    (panel,) = draw_agreement(rows).panels
    assert (panel.x.log, panel.y.log) == (log, log)
    kind = to_plotly(draw_agreement(rows)).layout.xaxis.type
    assert kind == ("log" if log else "linear")


@pytest.mark.parametrize(
    "make",
    [
        lambda: Line("a", (1.0, 2.0), (1.0,), "#000000"),
        lambda: Dots("a", (1.0,), (float("nan"),), "#000000"),
        lambda: Bars("a", (1.0,), (float("inf"),), "#000000"),
        lambda: Surface("a", (1.0, 2.0), (1.0,), ((1.0,),), "#000000"),
        lambda: Picture("a", (), provenance="guessed"),
        lambda: Judged("a", "flops", 0.0, 1.0),
        lambda: SampledCurve("a", ("x", "y", "z"), ((1.0,),) * 3, (1.0,), (0.0,)),
        lambda: draw_guided_point(FLAT, FLAT),
        lambda: draw_budget({"a": [[(1, 5.0)], [(2, 5.0)]]}),
        lambda: draw_budget({"a": [[(1, 5.0)]], "b": []}),
        lambda: draw_budget({"a": [[(1, 5.0)], []]}),
    ],
)
def test_what_cannot_be_drawn_is_refused(make):
    with pytest.raises(InputError):
        make()


def test_joined_pictures_keep_their_panels_and_the_weakest_provenance():
    parts = [draw_budget(RUNS, provenance="modelled"), draw_curve(NARROW, provenance="simulated")]
    joined = join_pictures("both", parts)
    assert joined.provenance == "simulated"
    assert [panel.marks for panel in joined.panels] == [p.panels[0].marks for p in parts]
    assert [panel.title for panel in joined.panels] == [part.title for part in parts]


# ---------------------------------------------------------------------------------------------
# What each picture says


def test_estimates_have_bars_from_their_intervals_and_hover_says_the_net():
    picture = draw_agreement(ROWS)
    for dots in marks_of(picture, Dots):
        own = [row for row in ROWS if row.estimator == dots.name]
        assert dots.low == tuple(row.interval_j[0] for row in own)
        assert dots.high == tuple(row.interval_j[1] for row in own)
        assert all(row.net in note for row, note in zip(own, dots.notes, strict=True))
    (line,) = marks_of(picture, Line)
    assert line.x == line.y
    trace = next(trace for trace in to_plotly(picture).data if trace.name == "flops")
    assert np.add(trace.y, trace.error_y.array) == pytest.approx(
        [row.interval_j[1] for row in ROWS if row.estimator == "flops"]
    )


def test_bars_are_mean_errors_and_the_floor_is_a_line():
    picture = draw_errors(ROWS, noise_percent={"cnn5": 1.5, "unknown": 9.0})
    heights = {bars.name: bars.y for bars in marks_of(picture, Bars)}
    for name, values in heights.items():
        for family, value in zip(("lenet5", "cnn5", "lstm"), values, strict=True):
            own = [row for row in ROWS if (row.family, row.estimator) == (family, name)]
            assert value == pytest.approx(mape_percent(own))
    (floor,) = marks_of(picture, Line)
    assert floor.y == (1.5, 1.5)


def test_levels_are_the_heights_of_the_bars_with_the_first_family_on_top():
    picture = draw_error_levels(ROWS, noise_percent={"cnn5": 1.5, "unknown": 9.0})
    (panel,) = picture.panels
    assert panel.y.labels == ("lstm", "cnn5", "lenet5")
    heights = {bars.name: bars.y for bars in marks_of(draw_errors(ROWS), Bars)}
    for dots in marks_of(picture, Dots):
        assert dots.x == heights[dots.name]
        assert dots.y == (2.0, 1.0, 0.0)
    (floor,) = marks_of(picture, Line)
    assert floor.x == (1.5, 1.5)


def test_bars_of_one_picture_never_overlap():
    for draw in (GALLERY["errors"], GALLERY["times"], GALLERY["additivity"]):
        spans = {
            (round(x - bars.width / 2, 9), round(x + bars.width / 2, 9))
            for bars in marks_of(draw(), Bars)
            for x in bars.x
        }
        ordered = sorted(spans)
        assert all(one[1] <= two[0] for one, two in pairwise(ordered))


@given(st.lists(st.floats(0.2, 5.0), min_size=1, max_size=20))
def test_shares_of_errors_rise_to_all_nets(ratios):
    rows = [Judged(str(i), "flops", 1.0, ratio) for i, ratio in enumerate(ratios)]
    (line,) = marks_of(draw_error_shares(rows), Line)
    assert line.y[0] == 0.0
    assert line.y[-1] == 100.0
    assert list(line.y) == sorted(line.y)
    assert list(line.x) == sorted(line.x)
    errors = sorted(abs(row.error_percent) for row in rows)
    middle = errors[len(errors) // 2]
    share = max(
        y for x, y in zip(line.x, line.y, strict=True) if x <= middle * (1 + 1e-12) or y == 0
    )
    assert share == pytest.approx(100 * sum(e <= middle for e in errors) / len(errors))


def test_a_band_holds_its_line_and_every_run():
    picture = draw_budget(RUNS)
    (band,) = marks_of(picture, Band)
    line = next(line for line in marks_of(picture, Line) if line.name == "guided")
    assert band.x == line.x == (10, 20, 30)
    assert line.y == tuple(statistics.fmean(y) for y in ((30, 25), (12, 15), (8, 9)))
    assert all(low <= y <= high for low, y, high in zip(band.low, line.y, band.high, strict=True))


def test_runs_with_other_budgets_are_read_between_their_points():
    runs = {"guided": [[(10, 30.0), (20, 10.0), (40, 5.0)], [(12, 20.0), (36, 8.0)]]}
    (line,) = marks_of(draw_budget(runs, against="device time", unit="s"), Line)
    assert line.x == (12, 20, 36)
    assert line.y == pytest.approx((23.0, 13.0, 7.0))


@given(st.lists(st.floats(0.1, 100.0), min_size=1, max_size=6))
def test_names_at_the_ends_of_lines_keep_their_order_and_their_distance(errors):
    lines = {f"line {at}": [(5.0, 50.0), (160.0, error)] for at, error in enumerate(errors)}
    picture = draw_cost(lines, floor_percent=0.5)
    (panel,) = picture.panels
    ends = {line.name: line.y[-1] for line in marks_of(picture, Line)}
    tags = sorted(marks_of(picture, Tag), key=lambda tag: tag.y)
    assert [tag.name for tag in tags] == sorted(ends, key=lambda name: ends[name])
    least = (panel.y.high / panel.y.low) ** 0.06
    assert all(two.y[0] / one.y[0] > least for one, two in pairwise(tags))
    assert not picture.legend


def test_a_line_comes_in_from_above_the_ceiling():
    lines = {"wild": [(5.0, 90000.0), (20.0, 20.0)], "lost": [(5.0, 500.0)]}
    picture = draw_cost(lines, ceiling_percent=100.0)
    (panel,) = picture.panels
    assert 100.0 <= panel.y.high < 120.0
    assert marks_of(picture, Line)[0].y == (90000.0, 20.0)
    assert all(tag.y[0] < panel.y.high for tag in marks_of(picture, Tag))


def test_a_line_takes_the_colour_of_its_kin():
    picture = draw_cost({"paper": [(5.0, 9.0)], "ours": [(5.0, 4.0)]}, kin={"paper": "subtractive"})
    colours = {line.name: line.colour for line in marks_of(picture, Line)}
    assert colours["paper"] == COLOURS["subtractive"]
    assert colours["ours"] in SPARE_COLOURS


def test_layers_stand_on_each_other_up_to_their_sum():
    measured, *_ = (
        b for b in marks_of(draw_additivity(WHOLES), Bars) if b.name == "measured whole"
    )
    stacks = [b for b in marks_of(draw_additivity(WHOLES), Bars) if b.base]
    for at, whole in enumerate(WHOLES):
        assert sum(bars.y[at] for bars in stacks) == pytest.approx(sum(whole.layers.values()))
        assert measured.y[at] == whole.measured_j
        top = 0.0
        for bars in stacks:
            assert bars.base[at] == pytest.approx(top)
            top += bars.y[at]


def test_many_layers_are_joined_and_none_is_lost():
    layers = {f"layer{i}": 0.1 + 0.01 * i for i in range(30)}
    picture = draw_additivity([Whole("deep", 7.0, layers)])
    stacks = [bars for bars in marks_of(picture, Bars) if bars.base]
    assert len(stacks) == 8
    assert stacks[-1].name == "23 smaller layers"
    assert sum(bars.y[0] for bars in stacks) == pytest.approx(sum(layers.values()))
    assert all(any(name in bars.notes[0] for bars in stacks) for name in layers)


def test_nets_of_very_different_size_are_drawn_as_shares():
    picture = draw_additivity([Whole("small", 0.01, {"a": 0.009}), Whole("large", 9.0, {"a": 9.9})])
    (panel,) = picture.panels
    assert panel.y.unit == "%"
    stack, measured = panel.marks
    assert measured.y == pytest.approx((100.0, 100.0))
    assert stack.y == pytest.approx((90.0, 110.0))


def test_sizes_are_drawn_over_channels_and_over_flops_in_order():
    by_channels, by_flops = draw_sizes(SIZES).panels
    assert by_channels.marks[-1].x == (8, 16, 32, 64)
    proportion = by_flops.marks[0]
    ratios = {round(y / x, 15) for x, y in zip(proportion.x, proportion.y, strict=True)}
    assert len(ratios) == 1
    assert proportion.y[-1] == by_flops.marks[-1].y[-1]


def test_time_and_energy_say_how_they_go_together():
    series = {"a": [Taken(str(i), i, 2.0 * i) for i in (1, 2, 3)], "b": [Taken("only", 1, 1)]}
    assert draw_time_energy(series).about == "a r = 1.00"


def test_a_sampled_curve_says_what_its_process_says():
    points = [(1, 1), (64, 1), (1, 32), (64, 32), (30, 9)]
    gp = fit_gp(points, [0.1, 0.5, 0.4, 2.0, 0.6], [1e-6] * 5)
    curve = sample_curve(gp, "a layer", ["cin", "cout"], {(9.0, 20.0): 0.5})
    (surface,) = marks_of(draw_curve(curve), Surface)
    for row, col in ((0, 0), (3, 20), (24, 7)):
        (mean,), _ = gp.predict(np.array([[surface.x[col], surface.y[row]]]))
        assert surface.z[row][col] == pytest.approx(mean)
    assert [list(point.widths) for point in curve.profiled] == gp.widths.tolist()
    (test,) = curve.tests
    (mean,), _ = gp.predict(np.array([[9.0, 20.0]]))
    assert test.curve_j == pytest.approx(mean)
    assert test.difference_percent == pytest.approx(100 * (mean / 0.5 - 1))


def test_differences_are_those_of_the_test_points():
    (dots,) = marks_of(draw_differences(FLAT), Dots)
    assert dots.shades == tuple(point.difference_percent for point in FLAT.tests)
    (dots,) = marks_of(draw_differences(NARROW), Dots)
    assert dots.y == tuple(point.difference_percent for point in NARROW.tests)


def test_the_guided_point_lies_where_the_band_was_widest():
    before, after = draw_guided_point(NARROW, FULLER).panels
    here = next(mark for mark in before.marks if mark.name == "least sure here")
    assert here.x[0] == NARROW.axes[0][int(np.argmax(NARROW.sds_j))]
    new = next(mark for mark in after.marks if mark.name == "newly profiled")
    assert new.x == (43.0,)
    assert (before.y.low, before.y.high) == (after.y.low, after.y.high)


def test_panels_know_how_many_stand_side_by_side():
    panel = Panel(Axis("x"), Axis("y"), (Line("a", (0.0, 1.0), (0.0, 1.0), "#000000"),))
    flat, room = Picture("a", (panel,) * 5), Picture("a", (replace(panel, z=Axis("z")),) * 5)
    assert (flat.columns, room.columns, Picture("a", (panel,)).columns) == (3, 2, 1)
    assert len(to_plotly(flat).data) == 5
    assert words_of(make_svg(flat)).count("x") >= 5


# ---------------------------------------------------------------------------------------------
# Fronts

PAIRS = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=30)


@given(PAIRS, st.booleans())
def test_a_front_is_drawn_as_stairs_from_end_to_end(pairs, more):
    points = [
        Priced(f"p{i}", float(x), float(y), (y / 2, y * 2.0)) for i, (x, y) in enumerate(pairs)
    ]
    picture = draw_front(points, more_is_better=more, budget_j=20.0, provenance="modelled")
    (panel,) = picture.panels
    stairs = next(m for m in panel.marks if isinstance(m, Line) and m.name == "on the front")
    assert "modelled" in picture.heading and "budget" in picture.series
    for (x0, y0), (x1, y1) in pairwise(zip(stairs.x, stairs.y, strict=True)):
        # Each piece goes level or upright, and better never costs less.
        assert x0 == x1 or y0 == y1
        assert x1 >= x0 and (y1 >= y0 if more else y1 <= y0)
    drawn = [m for m in panel.marks if isinstance(m, Dots)]
    assert sum(len(m.x) for m in drawn) == len(points)


def test_a_front_reaches_both_backends():
    points = [Priced("a net", 0.9, 3.0, (2.0, 4.0), tag="#1"), Priced("b", 0.8, 4.0, (3.0, 5.0))]
    picture = draw_front(points, worth="accuracy", budget_j=3.5, others="the others")
    assert "<svg" in make_svg(picture)
    assert "a net" in make_html(picture, library=False)
    with pytest.raises(InputError, match="nothing to draw"):
        draw_front([])


def test_a_timeline_has_every_job_where_it_runs_and_none_on_another():
    picture = draw_timeline(LANES)
    (panel,) = picture.panels
    assert panel.y.labels == ("server\nmains", "phone\n60 → 30 %")
    assert panel.x.unit == "min"
    server, phone = marks_of(picture, Spans)
    assert phone.x == (0.0, 30.0, 90.0) and phone.end == (60.0, 90.0, 150.0)
    assert phone.y[0] != phone.y[1] and phone.y[0] == phone.y[2]
    assert abs(phone.y[0] - phone.y[1]) >= phone.height
    assert server.texts == ("",)
    (charge,) = (line for line in marks_of(picture, Line) if line.name == "charge")
    (reserve,) = (line for line in marks_of(picture, Line) if line.name == "reserve")
    shares = [share for _, share in LANES[0].charge]
    heights = [(y - charge.y[0]) / (shares[at] - 0.6) for at, y in enumerate(charge.y) if at]
    assert heights == pytest.approx([heights[0]] * 3)
    assert reserve.y[0] == pytest.approx(charge.y[0] - 0.4 * heights[0])
    (window,) = (band for band in marks_of(picture, Band) if band.name == "charger")
    assert window.x == (60.0, 90.0)
