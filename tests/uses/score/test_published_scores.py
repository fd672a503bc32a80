"""The published phones: PCS is reproduced, and what looks wrong is shown."""

from __future__ import annotations

import pytest

from joulecast.uses.score import describe_published, list_published_notes, score_published
from joulecast.uses.score.published_scores import FOLDER, NAMES, REORDERED_TDP_W

PHONES = {one.score.name: one for one in score_published()}


def test_all_published_pcs_are_reproduced_with_the_other_order_of_tdp() -> None:
    assert [one.score.pcs for one in PHONES.values()] == [75, 78, 62, 78, 74, 70, 67, 56]
    assert [one.pcs_published for one in PHONES.values()] == [75, 78, 62, 78, 74, 70, 67, 56]


def test_the_printed_tdp_gives_other_scores() -> None:
    printed = [one.pcs_printed_tdp for one in PHONES.values()]
    assert printed == [63, 57, 80, 78, 83, 63, 67, 67]
    tdp_w = sorted(one.tdp_printed_w for one in PHONES.values())
    assert tdp_w == sorted(REORDERED_TDP_W)


def test_iecs_is_near_the_published_one_and_never_equal() -> None:
    ratios = {name: one.iecs_published / one.score.iecs for name, one in PHONES.items()}
    assert ratios.pop("Redmi Note 8") == pytest.approx(0.92, abs=0.005)
    assert min(ratios.values()) > 1.04 and max(ratios.values()) < 1.29


def test_the_misprint_changes_only_one_phone() -> None:
    changed = {name for name, one in PHONES.items() if one.corrected.iecs != one.score.iecs}
    assert changed == {"Redmi Note 8"}
    phone = PHONES["Redmi Note 8"]
    lost = 1 / 0.0265 - 1 / 0.265
    assert phone.score.iecs - phone.corrected.iecs == pytest.approx(lost)
    assert phone.iecs_published / phone.corrected.iecs == pytest.approx(1.19, abs=0.005)


def test_missing_cells_are_left_out_and_named() -> None:
    phone = PHONES["Redmi Note 8"].score
    assert len(phone.configurations) == 35 and len(phone.energies_j) == 33
    (note,) = [one for one in phone.list_notes() if "Not scored" in one]
    assert "2 of 35" in note and "DNN2, CPU4" in note and "DNN11, NNAPI" in note


def test_json_has_both_scores_of_every_phone() -> None:
    data = describe_published(tuple(PHONES.values()))
    assert [one["name"] for one in data["devices"]] == list(NAMES.values())
    keys = {"name", "pcs", "pcs_published", "pcs_printed_tdp", "iecs", "iecs_published"}
    assert all(keys <= set(one) for one in data["devices"])
    assert all(one["provenance"] == "imported" and one["source"] for one in data["devices"])
    text = " ".join(data["notes"])
    assert "2.9 %" in text and "Snapdragon 665" in text and "0.265" in text


def test_notes_say_what_follows() -> None:
    pcs, iecs, misprint, source = list_published_notes()
    assert "reproduces 2 of 8" in pcs and "another order 8" in pcs and "do not rank" in pcs
    assert "25,000 formulas" in iecs and "1.05 to 1.28" in iecs
    assert "117.8 instead of 151.7" in misprint and "CC BY 4.0" in source


def test_the_tables_ship_with_their_licence() -> None:
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert "CC BY 4.0" in text and "Xiaolong Tu" in text and "No value was changed" in text
