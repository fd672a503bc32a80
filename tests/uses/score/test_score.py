"""Formulas of the scores, letters, JSON, plots, and scores from observations."""

from __future__ import annotations

from dataclasses import replace

import pytest

from joulecast.errors import InputError
from joulecast.records import Device, LoadWindow, Observation, Profile, Setup, Trial
from joulecast.uses.score import (
    LETTERS,
    DeviceFacts,
    DeviceScore,
    ScoredConfiguration,
    build_reference_application,
    describe_scores,
)
from joulecast.uses.score.observed_scores import (
    describe_processor,
    find_score_setups,
    list_score_setups,
    list_score_trials,
    score_observations,
)
from joulecast.uses.score.score_labels import ENERGY_SCALE, POWER_SCALE
from joulecast.uses.score.score_plot import plot_scores
from joulecast.views.plots import draw

TWO = (
    ScoredConfiguration("image_classification", "1 thread", energy_j=0.5, power_w=4.0),
    ScoredConfiguration("image_classification", "4 threads", energy_j=0.25, power_w=8.0),
    ScoredConfiguration("speech", "1 thread", energy_j=0.1, power_w=2.0),
    ScoredConfiguration("speech", "4 threads", missing="it does not fit"),
)
SCORE = DeviceScore("board", "torch-2.13.0", "board", "measured", TWO, DeviceFacts(10.0))


def test_scores_by_hand() -> None:
    # Powers of 4, 8 and 2 W leave 60, 20 and 80 % of 10 W.
    assert SCORE.pcs == 53
    assert SCORE.iecs == pytest.approx(2 + 4 + 10)
    assert SCORE.inferences_per_joule == pytest.approx(16 / 3)
    # 0.375 J and 0.1 J per inference, averaged over applications.
    assert SCORE.wh_per_1000_inferences == pytest.approx((0.375 + 0.1) / 2 / 3.6)
    # 8, 32 and 20 inferences per second.
    assert SCORE.inferences_per_s == pytest.approx((8 * 32 * 20) ** (1 / 3))
    assert (SCORE.pcs_label, SCORE.iecs_label, SCORE.label) == ("E", "C", "E")


def test_missing_configurations_are_named() -> None:
    (note,) = SCORE.list_notes()
    assert "1 of 4" in note and "speech, 4 threads" in note and "it does not fit" in note


def test_letters_need_all_applications() -> None:
    score = replace(SCORE, configurations=(*TWO[:2], TWO[3]))
    assert (score.pcs_label, score.iecs_label, score.label) == (None, None, None)
    assert score.pcs == 40 and score.iecs == pytest.approx(6.0)
    assert "no letters" in score.list_notes()[-1] and "speech" in score.list_notes()[-1]


def test_without_tdp_there_is_no_pcs_and_no_label() -> None:
    score = replace(SCORE, facts=DeviceFacts())
    assert (score.pcs, score.pcs_label, score.label) == (None, None, None)
    assert score.iecs_label == "C" and "--tdp 15W" in score.list_notes()[0]


def test_more_power_than_tdp_is_a_negative_score() -> None:
    score = replace(SCORE, facts=DeviceFacts(3.0))
    assert score.pcs == -56 and score.label == "G"
    assert "PCS is negative" in score.list_notes()[0]


@pytest.mark.parametrize(
    ("provenance", "words"), [("modelled", "was not measured"), ("simulated", "is simulated")]
)
def test_notes_say_what_was_not_measured(provenance: str, words: str) -> None:
    assert any(words in note for note in replace(SCORE, provenance=provenance).list_notes())
    assert not any(words in note for note in SCORE.list_notes())


def test_a_stated_performance_replaces_the_observed_one() -> None:
    assert replace(SCORE, facts=DeviceFacts(inferences_per_s=99.0)).inferences_per_s == 99.0


@pytest.mark.parametrize("scale", [POWER_SCALE, ENERGY_SCALE])
def test_letters_follow_the_thresholds(scale) -> None:
    for letter, least in zip(LETTERS, scale.thresholds, strict=False):
        assert scale.choose_letter(least) == letter
        assert scale.choose_letter(least - 1e-9) == LETTERS[LETTERS.index(letter) + 1]
    assert scale.choose_letter(-100.0) == "G"
    assert f"A from {scale.thresholds[0]:g}" in scale.describe()


def test_json_says_what_scores_rest_on() -> None:
    data = describe_scores([SCORE])
    (device,) = data["devices"]
    assert device["pcs"] == 53 and device["label"] == "E" and device["provenance"] == "measured"
    assert device["configurations"][3]["missing"] == "it does not fit"
    assert device["configurations"][0]["latency_s"] == pytest.approx(0.125)
    assert data["scale"]["pcs"]["A"] == 90.0 and data["scale"]["pcs"]["G"] is None
    assert any("our reading" in note for note in data["notes"])
    assert any("are ours" in note for note in data["notes"])


def test_plots_against_price_and_performance() -> None:
    cheap = replace(SCORE, name="cheap", facts=DeviceFacts(10.0, price=99.0, currency="EUR"))
    dear = replace(SCORE, name="dear", facts=DeviceFacts(20.0, price=999.0, currency="EUR"))
    plots = plot_scores([cheap, dear])
    assert [plot.name for plot in plots] == ["price", "performance"]
    pcs, iecs = draw(plots[0]).axes
    assert (pcs.get_xlabel(), pcs.get_ylabel()) == ("Price (EUR)", "PCS")
    assert iecs.get_ylabel() == "IECS (our reading)"
    assert {text.get_text() for text in pcs.texts} == {"cheap (E)", "dear (C)"}
    assert ("dear", "C", "PCS", "999", "77") in plots[0].data.rows


def test_plots_leave_out_what_is_not_known() -> None:
    (plot,) = plot_scores([replace(SCORE, facts=DeviceFacts())])
    assert plot.name == "performance"
    with pytest.raises(InputError, match="nothing to plot"):
        plot_scores([replace(SCORE, configurations=())])


def test_prices_in_two_currencies_are_refused() -> None:
    euro = replace(SCORE, facts=DeviceFacts(10.0, price=99.0, currency="EUR"))
    dollar = replace(SCORE, facts=DeviceFacts(10.0, price=99.0, currency="USD"))
    with pytest.raises(InputError, match="one currency"):
        plot_scores([euro, dollar])


# ---------------------------------------------------------------------------------------------
# Scores from observations

SETUP = Setup(1, "inference", threads=4)
SPEECH = Trial(build_reference_application("speech"), SETUP)


def make_profile(*observations: Observation) -> Profile:
    return Profile(Device("board"), "torch-2.13.0", "board", "measured", observations)


def summarise_speech(*observations: Observation) -> ScoredConfiguration:
    score = score_observations(make_profile(*observations), [SETUP], DeviceFacts())
    assert [one.application for one in score.configurations if one.missing == "not measured yet"]
    return next(one for one in score.configurations if one.application == "speech")


def test_several_observations_become_their_median() -> None:
    energies_j = (1.0, 2.0, 9.0)
    found = [Observation(SPEECH, energy_j=one, duration_s=0.5) for one in energies_j]
    configuration = summarise_speech(*found)
    assert (configuration.energy_j, configuration.power_w, configuration.count) == (2.0, 4.0, 3)
    assert configuration.processor == "4 threads"


def test_only_the_same_network_and_setup_count() -> None:
    trained = Trial(SPEECH.network, replace(SETUP, phase="train"))
    larger = Trial(SPEECH.network, replace(SETUP, batch=8))
    other = Trial(build_reference_application("segmentation"), SETUP)
    found = [Observation(one, energy_j=1.0, duration_s=1.0) for one in (trained, larger, other)]
    assert summarise_speech(*found).energy_j is None
    assert find_score_setups(found[:2], "fp32") == []
    assert find_score_setups(found, "fp32") == [SETUP]
    assert find_score_setups(found, "bf16") == []


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"duration_s": 0.5}, "without energy"),
        ({"energy_j": 0.0, "duration_s": 0.5}, "counted no energy"),
        ({"refusal": "out of memory"}, "out of memory"),
        ({"duration_s": 0.5, "windows": (LoadWindow(1.0, 2.0),)}, "attach a power trace"),
    ],
)
def test_observations_without_energy_are_not_scored(values, reason: str) -> None:
    configuration = summarise_speech(Observation(SPEECH, **values))
    assert configuration.energy_j is None and reason in configuration.missing


def test_every_application_meets_every_setup() -> None:
    setups = list_score_setups((1, 4), ("CPU", "GPU"))
    assert len(setups) == 4 and len(list_score_trials(setups)) == 24
    assert {one.batch for one in setups} == {1} and {one.phase for one in setups} == {"inference"}
    assert [describe_processor(one) for one in setups] == [
        "CPU, 1 thread", "CPU, 4 threads", "GPU, 1 thread", "GPU, 4 threads",
    ]  # fmt: skip
    assert describe_processor(list_score_setups()[0]) == "default"
    assert describe_processor(Setup(1, "inference", "int8", cuda_graphs=True)) == (
        "CUDA graphs, int8"
    )
