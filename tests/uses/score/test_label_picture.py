"""The label is a valid picture that says where its numbers come from."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from joulecast.uses.score import LETTERS, DeviceFacts, DeviceScore, ScoredConfiguration, draw_label
from joulecast.uses.score.label_picture import HEIGHT, LETTER_COLOURS, WIDTH

NAMESPACE = "{http://www.w3.org/2000/svg}"
SCORE = DeviceScore(
    "board",
    "torch-2.13.0",
    "cpu",
    "measured",
    (ScoredConfiguration("speech", "1 thread", energy_j=0.1, power_w=2.0),),
    DeviceFacts(10.0),
)


def read_texts(score: DeviceScore) -> list[str]:
    root = ElementTree.fromstring(draw_label(score))
    return [one.text or "" for one in root.iter(f"{NAMESPACE}text")]


def find_mark(score: DeviceScore) -> float:
    """Return the height of the mark's centre."""
    root = ElementTree.fromstring(draw_label(score))
    (mark,) = [one for one in root.iter(f"{NAMESPACE}polygon") if one.get("class") == "mark"]
    return float(mark.get("points").split()[0].split(",")[1])


def test_the_label_shows_scores_units_and_limits() -> None:
    text = "\n".join(read_texts(SCORE))
    for words in ("board", "80", "IECS*", "0.0278", "TDP 10.0 W (given)", "measured", "speech"):
        assert words in text
    assert "weights are not public" in text and "not an official energy label" in text


@pytest.mark.parametrize("provenance", ["modelled", "simulated", "imported"])
def test_numbers_that_were_not_measured_say_so(provenance: str) -> None:
    assert provenance.upper() in read_texts(replace(SCORE, provenance=provenance))


def test_published_numbers_say_so() -> None:
    texts = read_texts(replace(SCORE, provenance="imported", source="DeepEn2023, published"))
    assert "PUBLISHED" in texts and any("DeepEn2023" in one for one in texts)


def test_the_mark_is_at_its_letter() -> None:
    root = ElementTree.fromstring(draw_label(SCORE))
    arrows = [one for one in root.iter(f"{NAMESPACE}polygon") if one.get("fill") in LETTER_COLOURS]
    tips = [float(one.get("points").split()[2].split(",")[1]) for one in arrows]
    assert len(tips) == len(LETTERS) and SCORE.label == "B"
    assert find_mark(SCORE) == tips[LETTERS.index("B")]


def test_a_device_without_tdp_has_no_mark() -> None:
    score = replace(SCORE, facts=DeviceFacts())
    texts = read_texts(score)
    assert "no label" in texts and any("TDP not known" in one for one in texts)
    with pytest.raises(ValueError, match="unpack"):
        find_mark(score)


def test_a_name_cannot_change_the_picture() -> None:
    texts = read_texts(replace(SCORE, name='</text><script>"&\x1b'))
    assert any("<script>" in one and "\\x1b" in one for one in texts)


def test_everything_is_inside_the_page() -> None:
    score = replace(SCORE, name="m" * 200, runtime="m" * 200)
    root = ElementTree.fromstring(draw_label(score))
    for text in root.iter(f"{NAMESPACE}text"):
        x, size = float(text.get("x")), float(text.get("font-size"))
        # Mean width of a letter of the usual fonts.
        width = 0.55 * size * len(text.text or "")
        assert float(text.get("y")) < HEIGHT
        if text.get("text-anchor") == "start" and "m" * 10 not in text.text:
            assert x + width < WIDTH


def test_the_picture_follows_the_colour_scheme_of_its_reader() -> None:
    assert "prefers-color-scheme: dark" in draw_label(SCORE)
