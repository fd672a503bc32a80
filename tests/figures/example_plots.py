"""Example data for every kind of plot, and helpers that read plots."""

import xml.etree.ElementTree as ET

from joulecast.figures import (
    Axis,
    ChannelCosts,
    CostPlotOptions,
    DeviceSchedule,
    ErrorPoint,
    LayerMeasurement,
    LayerStack,
    LearningCurve,
    NetworkBreakdown,
    ScheduledJob,
    ScoredEstimate,
    StepMeasurement,
    plot_acquisition_step,
    plot_additivity,
    plot_channel_costs,
    plot_curve,
    plot_curve_errors,
    plot_energy_by_size,
    plot_energy_by_time,
    plot_error_by_budget,
    plot_error_by_cost,
    plot_error_distribution,
    plot_error_trend,
    plot_estimates,
    plot_layer_stacks,
    plot_mape_bars,
    plot_mape_points,
    plot_profiling_time,
    plot_pruned_networks,
    plot_timeline,
    sample_curve,
)
from joulecast.figures.plot import Caption
from joulecast.gp.regression import fit_gaussian_process

ROWS = [
    ScoredEstimate(
        f"{family}:{net}",
        estimator,
        measured_j,
        measured_j * ratio,
        (measured_j * ratio * 0.9, measured_j * ratio * 1.2),
        family,
    )
    for family, measured_j in (("lenet5", 0.004), ("cnn5", 2.0), ("lstm", 0.3))
    for net in (8, 16, 32)
    for estimator, ratio in (("subtractive", 0.9 + net / 200), ("flops", 2.0), ("mine", 1.01))
]
BREAKDOWNS = [
    NetworkBreakdown(
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
SIZES = {"linear": [LayerMeasurement(c, 1e6 * c, 0.1 + 0.02 * (c // 8)) for c in (64, 8, 16, 32)]}
STEPS = {
    "cnn5": [
        StepMeasurement("cnn5:8", 0.01, 2.0),
        StepMeasurement("cnn5:4", 0.006, 1.0),
        StepMeasurement("x", 0.02, 3.5),
    ]
}
LEARNING = {
    "unpruned": LearningCurve((50, 100), (0.6, 0.3), (0.7, 0.9)),
    "random, FLOPs": LearningCurve((50, 100), (0.6, 0.4), (0.7, 0.85)),
}
ENERGY_SHARES = {"random, subtractive": (0.49, 0.51), "random, FLOPs": (0.8, 0.9)}
STACKS = [
    LayerStack(
        "batch 10",
        (0.0, 1.0, 2.0),
        (0.2, 0.31, 0.4),
        (0.19, 0.3, 0.39),
        (0.21, 0.32, 0.41),
        (0.2, 0.4),
        {"neuralpower": (0.3, 0.5, 0.7)},
    )
]
TREND = [
    ErrorPoint(f"net {i}", name, 10.0 * i, sign * 5.0 * i)
    for i in (1, 2, 3)
    for name, sign in (("flops", -1), ("subtractive", 1))
]
CHANNELS = [
    ChannelCosts(
        "input (10, C, 28, 28)",
        (1.0, 8.0, 64.0),
        (0.1, 0.2, 0.5),
        (False, True, False),
        (0.01, 0.08, 0.6),
        (0.11, 0.16, 0.5),
        (0.1, 0.19, 0.5),
        (0.09, 0.17, 0.48),
        (0.11, 0.21, 0.52),
    )
]
DURATIONS_S = {"xavier": {"lenet5": 184.0, "har": 740.0}, "server": {"lenet5": 235.0}}


def sample(points, features, held_out_j=None):
    values = [0.1 + 0.01 * sum(point) for point in points]
    process = fit_gaussian_process(points, values, [1e-6] * len(points))
    return sample_curve(process, "a layer", features, held_out_j)


CURVE = sample([(1,), (64,), (20,)], ["cin"], {(30.0,): 0.5, (50.0,): 0.6})
LATER_CURVE = sample([(1,), (64,), (20,), (43,)], ["cin"])
SURFACE = sample([(1, 1), (64, 1), (1, 32), (64, 32), (30, 9)], ["cin", "cout"], {(9.0, 20.0): 0.3})

SCHEDULES = [
    DeviceSchedule(
        "phone",
        (
            ScheduledJob("a", 0.0, 3600.0),
            ScheduledJob("b", 1800.0, 5400.0),
            ScheduledJob("a longer name", 5400.0, 9000.0),
        ),
        ((0.0, 0.6), (3600.0, 0.4), (5400.0, 0.5), (9000.0, 0.3)),
        0.2,
        ((3600.0, 5400.0),),
    ),
    DeviceSchedule("server", (ScheduledJob("c", 600.0, 700.0),)),
]

NO_CAPTION = Caption()
COST_OPTIONS = CostPlotOptions(noise_percent=0.7)
MAKERS = {
    "timeline": lambda caption=NO_CAPTION: plot_timeline(SCHEDULES, caption),
    "estimates": lambda caption=NO_CAPTION: plot_estimates(ROWS, caption),
    "mape bars": lambda caption=NO_CAPTION: plot_mape_bars(ROWS, {"cnn5": 1.5}, caption),
    "mape points": lambda caption=NO_CAPTION: plot_mape_points(ROWS, {"cnn5": 1.5}, caption),
    "distribution": lambda caption=NO_CAPTION: plot_error_distribution(ROWS, caption),
    "budget": lambda caption=NO_CAPTION: plot_error_by_budget(RUNS, caption=caption),
    "cost": lambda caption=NO_CAPTION: plot_error_by_cost(COSTS, COST_OPTIONS, caption=caption),
    "profiling time": lambda caption=NO_CAPTION: plot_profiling_time(DURATIONS_S, caption),
    "pruned": lambda caption=NO_CAPTION: plot_pruned_networks(
        LEARNING, ENERGY_SHARES, 0.5, caption
    ),
    "stacks": lambda caption=NO_CAPTION: plot_layer_stacks(STACKS, caption),
    "error trend": lambda caption=NO_CAPTION: plot_error_trend(TREND, Axis("Layers"), caption),
    "channel costs": lambda caption=NO_CAPTION: plot_channel_costs(CHANNELS, caption),
    "additivity": lambda caption=NO_CAPTION: plot_additivity(BREAKDOWNS, caption),
    "sizes": lambda caption=NO_CAPTION: plot_energy_by_size(SIZES, caption),
    "time and energy": lambda caption=NO_CAPTION: plot_energy_by_time(STEPS, caption),
    "curve": lambda caption=NO_CAPTION: plot_curve(CURVE, caption),
    "surface": lambda caption=NO_CAPTION: plot_curve(SURFACE, caption),
    "curve errors": lambda caption=NO_CAPTION: plot_curve_errors(CURVE, caption),
    "surface errors": lambda caption=NO_CAPTION: plot_curve_errors(SURFACE, caption),
    "acquisition": lambda caption=NO_CAPTION: plot_acquisition_step(CURVE, LATER_CURVE, caption),
}


def read_svg_text(svg):
    """Return all text of an SVG, with wrapped lines joined."""
    texts = (
        "".join(found.itertext())
        for found in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    )
    return " ".join(" ".join(texts).split())


def list_marks(plot, kind):
    """Return all marks of a class."""
    return [mark for panel in plot.panels for mark in panel.marks if isinstance(mark, kind)]
