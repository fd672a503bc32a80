"""Plots of estimates, costs and schedules, rendered with plotly (screen) or matplotlib (papers).

    plot_estimates, plot_mape_bars, plot_mape_points,             accuracy
    plot_error_distribution, plot_error_trend
    plot_error_by_budget, plot_error_by_cost,                     cost of accuracy
    plot_error_by_time, plot_profiling_time
    plot_pareto_front                                             energy against score or time
    plot_additivity, plot_energy_by_size, plot_energy_by_time,    what energy depends on
    plot_layer_stacks, plot_channel_costs
    plot_curve, plot_curve_errors, plot_acquisition_step          fitted curves of a layer
    plot_timeline                                                 schedules and batteries
    plot_layer_changes, plot_pruned_networks                      pruning
    plot_campaign, plot_observations                              progress of profiling
        │
        ▼
    Plot ──to_plotly──▶ plotly Figure     save_html: a page, and plotly's script beside it
         ──embed_plot─▶ EmbeddedPlot      part of a page, with a sentence and a table as text
         ──save_svg───▶ file              matplotlib, the extra ``paper``; save_png likewise

A Plot describes panels, axes and marks once (``plot``, ``marks``) and either backend renders it.
The title of a plot says when its data were not measured. Importing this package imports neither
plotly, matplotlib nor numpy.
"""

from joulecast.figures.additivity_plot import NetworkBreakdown, plot_additivity
from joulecast.figures.campaign_plot import CampaignMoment, plot_campaign, plot_observations
from joulecast.figures.change_plot import ChangedLayer, plot_layer_changes
from joulecast.figures.cost_plots import (
    CostPlotOptions,
    plot_error_by_budget,
    plot_error_by_cost,
    plot_error_by_time,
    plot_profiling_time,
)
from joulecast.figures.curve_plots import (
    CurvePoint,
    SampledCurve,
    plot_acquisition_step,
    plot_curve,
    plot_curve_errors,
    sample_curve,
)
from joulecast.figures.embedded_plots import EmbeddedPlot, embed_plot
from joulecast.figures.error_plots import (
    ScoredEstimate,
    compute_mape_percent,
    plot_error_distribution,
    plot_estimates,
    plot_mape_bars,
    plot_mape_points,
)
from joulecast.figures.error_trend_plot import ErrorPoint, plot_error_trend
from joulecast.figures.front_plot import FrontPlotOptions, FrontPoint, plot_pareto_front
from joulecast.figures.matplotlib_backend import make_png, make_svg, to_matplotlib
from joulecast.figures.plot import Axis, Caption, Plot, combine_plots
from joulecast.figures.plotly_backend import to_plotly
from joulecast.figures.pruning_plot import LearningCurve, plot_pruned_networks
from joulecast.figures.save import make_html, save_html, save_png, save_svg
from joulecast.figures.size_plots import (
    ChannelCosts,
    LayerMeasurement,
    StepMeasurement,
    plot_channel_costs,
    plot_energy_by_size,
    plot_energy_by_time,
)
from joulecast.figures.stack_plot import LayerStack, plot_layer_stacks
from joulecast.figures.timeline_plot import DeviceSchedule, ScheduledJob, plot_timeline

__all__ = [
    "Axis",
    "CampaignMoment",
    "Caption",
    "ChangedLayer",
    "ChannelCosts",
    "CostPlotOptions",
    "CurvePoint",
    "DeviceSchedule",
    "EmbeddedPlot",
    "ErrorPoint",
    "FrontPlotOptions",
    "FrontPoint",
    "LayerMeasurement",
    "LayerStack",
    "LearningCurve",
    "NetworkBreakdown",
    "Plot",
    "SampledCurve",
    "ScheduledJob",
    "ScoredEstimate",
    "StepMeasurement",
    "combine_plots",
    "compute_mape_percent",
    "embed_plot",
    "make_html",
    "make_png",
    "make_svg",
    "plot_acquisition_step",
    "plot_additivity",
    "plot_campaign",
    "plot_channel_costs",
    "plot_curve",
    "plot_curve_errors",
    "plot_energy_by_size",
    "plot_energy_by_time",
    "plot_error_by_budget",
    "plot_error_by_cost",
    "plot_error_by_time",
    "plot_error_distribution",
    "plot_error_trend",
    "plot_estimates",
    "plot_layer_changes",
    "plot_layer_stacks",
    "plot_mape_bars",
    "plot_mape_points",
    "plot_observations",
    "plot_pareto_front",
    "plot_profiling_time",
    "plot_pruned_networks",
    "plot_timeline",
    "sample_curve",
    "save_html",
    "save_png",
    "save_svg",
    "to_matplotlib",
    "to_plotly",
]
