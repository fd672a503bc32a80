"""The pictures: plain numbers → a Picture → plotly for the screen, SVG for papers.

    draw_agreement, draw_errors, draw_error_levels,       how good estimates are
    draw_error_shares
    draw_budget, draw_cost, draw_profiling_time           what that costs
    draw_front                                            what is worth its joules
    draw_additivity, draw_sizes, draw_time_energy         what energy follows, and what not
    draw_curve, draw_differences, draw_guided_point       what an estimator thinks of a layer
    draw_timeline                                         what runs when, and what batteries hold
        │
        ▼
    Picture ──to_plotly──▶ Figure     save_html: a page that needs no network
            ──save_svg───▶ file       matplotlib, the extra ``paper``; save_png likewise

Each picture is described once (picture.py) and drawn by either backend. What is not measured says
so in its heading. Importing this imports neither plotly, matplotlib nor numpy.
"""

from joulecast.figures.error_plots import (
    Judged,
    draw_agreement,
    draw_error_levels,
    draw_error_shares,
    draw_errors,
    mape_percent,
)
from joulecast.figures.additivity_plot import Whole, draw_additivity
from joulecast.figures.cost_plots import draw_budget, draw_cost, draw_profiling_time
from joulecast.figures.curve_plots import (
    CurvePoint,
    SampledCurve,
    draw_curve,
    draw_differences,
    draw_guided_point,
    sample_curve,
)
from joulecast.figures.front_plot import Priced, draw_front
from joulecast.figures.picture import Picture, join_pictures
from joulecast.figures.save import make_html, save_html, save_png, save_svg
from joulecast.figures.size_plots import Sized, Taken, draw_sizes, draw_time_energy
from joulecast.figures.timeline_plot import Lane, Stay, draw_timeline
from joulecast.figures.with_matplotlib import make_png, make_svg, to_matplotlib
from joulecast.figures.with_plotly import to_plotly

__all__ = [
    "CurvePoint",
    "Judged",
    "Lane",
    "Picture",
    "Priced",
    "SampledCurve",
    "Sized",
    "Stay",
    "Taken",
    "Whole",
    "draw_additivity",
    "draw_agreement",
    "draw_budget",
    "draw_cost",
    "draw_curve",
    "draw_differences",
    "draw_error_levels",
    "draw_error_shares",
    "draw_errors",
    "draw_front",
    "draw_guided_point",
    "draw_profiling_time",
    "draw_sizes",
    "draw_time_energy",
    "draw_timeline",
    "join_pictures",
    "make_html",
    "make_png",
    "make_svg",
    "mape_percent",
    "sample_curve",
    "save_html",
    "save_png",
    "save_svg",
    "to_matplotlib",
    "to_plotly",
]
