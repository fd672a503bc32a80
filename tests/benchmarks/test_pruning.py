"""Pruning case study: its synthetic faces and its report."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parents[2] / "benchmarks" / "pruning"


@pytest.fixture(scope="module")
def scripts():
    """Return the modules ``faces`` and ``study``, which import each other by bare names."""
    sys.path.insert(0, str(FOLDER))
    try:
        yield importlib.import_module("faces"), importlib.import_module("study")
    finally:
        sys.path.remove(str(FOLDER))
        for name in ("faces", "study"):
            sys.modules.pop(name, None)


def test_faces_depend_on_the_seed_alone(scripts):
    faces, _ = scripts
    one, two, other = (faces.draw_faces(64, torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert torch.equal(one[0], two[0]) and torch.equal(one[1], two[1])
    assert not torch.equal(one[0], other[0])
    assert one[0].shape == (64, 3, 64, 64) and 0.3 < one[1].float().mean() < 0.7


def test_only_the_mouth_differs(scripts, monkeypatch):
    """Without noise, mean images of both classes differ at the mouth."""
    faces, _ = scripts
    monkeypatch.setattr(faces, "NOISE", 0.0)
    images, labels = faces.draw_faces(1500, torch.Generator().manual_seed(3))
    difference = (images[labels == 1].mean(0) - images[labels == 0].mean(0)).abs().mean(0)
    rows = difference.mean(1)
    assert 38 < int(rows.argmax()) < 56
    assert rows[38:56].max() > rows[:32].max()


def test_report_counts_seeds_above_the_budget(scripts, tmp_path, capsys):
    _, study = scripts
    shares = {"unpruned": (1.0, 1.0), "estimate": (0.48, 0.51), "flops": (0.7, 0.72)}
    for at in (0, 1):
        methods = {
            name: {"energy_j": 4 * s[at], "share": s[at], "accuracy": 0.9, "loss": 0.2}
            for name, s in shares.items()
        }
        data = {"seed": at, "about": {"provenance": "simulated"}, "methods": methods}
        (tmp_path / f"seed-{at}.json").write_text(json.dumps(data))
    study.write_report(tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())["methods"]
    assert (summary["estimate"]["above_budget"], summary["flops"]["above_budget"]) == (1, 2)
    assert summary["estimate"]["points_off_worst"] == pytest.approx(-2.0)
    assert "simulated" in capsys.readouterr().out


def test_net_follows_the_protocol(scripts):
    _, study = scripts
    convs = [one for one in study.make_net(study.WIDTHS) if isinstance(one, torch.nn.Conv2d)]
    assert [conv.out_channels for conv in convs] == [64, 128, 256, 512]
    assert set(study.SEEDS) == set(range(1, 11))
