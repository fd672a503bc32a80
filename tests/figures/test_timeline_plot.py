"""Timelines show every job, and the charge of every battery."""

import pytest

from figures.example_plots import SCHEDULES, list_marks
from joulecast.figures import plot_timeline
from joulecast.figures.marks import Band, HorizontalBars, Line


def test_jobs_do_not_overlap_and_charge_is_to_scale():
    plot = plot_timeline(SCHEDULES)
    (panel,) = plot.panels
    assert panel.y.categories == ("server\nmains", "phone\n60 → 30 %")
    assert panel.x.unit == "min"
    server, phone = list_marks(plot, HorizontalBars)
    assert phone.x == (0.0, 30.0, 90.0) and phone.end == (60.0, 90.0, 150.0)
    assert phone.y[0] != phone.y[1] and phone.y[0] == phone.y[2]
    assert abs(phone.y[0] - phone.y[1]) >= phone.height
    assert server.labels == ("",)
    (charge,) = (line for line in list_marks(plot, Line) if line.name == "state of charge")
    (reserve,) = (line for line in list_marks(plot, Line) if line.name == "reserve")
    shares = [share for _, share in SCHEDULES[0].charge]
    heights = [(y - charge.y[0]) / (shares[i] - 0.6) for i, y in enumerate(charge.y) if i]
    assert heights == pytest.approx([heights[0]] * 3)
    assert reserve.y[0] == pytest.approx(charge.y[0] - 0.4 * heights[0])
    (window,) = (band for band in list_marks(plot, Band) if band.name == "charging")
    assert window.x == (60.0, 90.0)
