"""Progress of a campaign: uncertainty in percent, points as steps, kinds of observations."""

import pytest

from figures.example_plots import list_marks
from joulecast.errors import InputError
from joulecast.figures import CampaignMoment, Caption, plot_campaign, plot_observations
from joulecast.figures.marks import Line

MOMENTS = [CampaignMoment(0.0, 2), CampaignMoment(5.0, 3, 0.4), CampaignMoment(9.0, 4, 0.1)]


def test_uncertainty_is_shown_from_when_it_is_known():
    plot = plot_campaign(MOMENTS, Caption(provenance="modelled"))
    uncertainty, points = plot.panels
    assert uncertainty.marks[0].x == (5.0, 9.0)
    assert uncertainty.marks[0].y == pytest.approx((40.0, 10.0))
    assert points.marks[0].y == (2.0, 3.0, 4.0) and points.marks[0].is_step
    assert plot.heading == "Progress of the campaign (modelled)"


def test_an_atlas_has_points_only():
    plot = plot_campaign([CampaignMoment(1.0, 5), CampaignMoment(2.0, 6)])
    assert [panel.y.title for panel in plot.panels] == ["Points"]
    with pytest.raises(InputError, match="moment"):
        plot_campaign([])


def test_observations_are_counted_by_kind_until_the_last_of_all():
    plot = plot_observations({"energy": [7200.0, 0.0], "time": [3600.0]})
    energy, time = list_marks(plot, Line)
    assert (energy.x, energy.y) == ((0.0, 2.0, 2.0), (1.0, 2.0, 2.0))
    assert (time.x, time.y) == ((1.0, 2.0), (1.0, 1.0))
    assert plot.panels[0].x.unit == "h"
