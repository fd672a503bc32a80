"""``joulecast.score`` in Python: options, and which devices are measured."""

from __future__ import annotations

from pathlib import Path

import pytest

import joulecast
from joulecast.errors import InputError, MissingError
from joulecast.features.score import ScoreOptions, score_stored
from joulecast.uses.score import DeviceFacts


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOULECAST_STORE", str(tmp_path / "store.sqlite"))


def test_a_device_is_scored_and_found_again() -> None:
    details: list[str] = []
    (score,) = joulecast.score(
        on="simulated:7",
        threads=2,
        tdp="150W",
        price="599EUR",
        rounds=1,
        on_progress=lambda now: details.append(now.detail),
    )
    assert score.label is not None and score.provenance == "simulated"
    assert (score.facts.price, score.facts.currency) == (599.0, "EUR")
    assert len(details) == 6 and details[0] == "image_classification, 2 threads"
    (again,) = joulecast.score(devices=["simulated-7"], tdp="150W")
    assert again.iecs == score.iecs and again.pcs == score.pcs
    (offline,) = joulecast.score(on="simulated:7", offline=True, tdp="150W")
    assert offline.configurations == score.configurations


def test_wrong_options_are_refused_before_anything_is_measured() -> None:
    with pytest.raises(InputError, match="did you mean 'threads'"):
        joulecast.score(on="simulated:7", thread=2)
    with pytest.raises(InputError, match="at least 1"):
        joulecast.score(on="simulated:7", threads=(1, 0))
    with pytest.raises(InputError, match="like 15W"):
        joulecast.score(on="simulated:7", tdp="15")
    with pytest.raises(InputError, match="inferences per second"):
        joulecast.score(on="simulated:7", inferences_per_s=-1.0)
    with pytest.raises(MissingError, match="nothing is stored"):
        joulecast.score(on="simulated:7", offline=True)


def test_options_that_a_file_or_other_devices_contradict_are_refused() -> None:
    stated, in_file = ScoreOptions(tdp="15W"), {"board": DeviceFacts(tdp_w=10.0)}
    with pytest.raises(InputError, match="not in both places"):
        score_stored(("board",), stated, in_file)
    with pytest.raises(InputError, match="those of one device"):
        score_stored(("board", "other"), stated, {})


def test_published_phones() -> None:
    phones = joulecast.score_phones(("P40 Lite", "P40 Pro"))
    assert [one.score.pcs for one in phones] == [74, 78]
    with pytest.raises(InputError, match="choose from"):
        joulecast.score_phones(("Pixel",))
