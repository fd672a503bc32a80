"""Ages in words, and what pages keep between requests."""

from __future__ import annotations

from dataclasses import replace

import pytest

from joulecast.features.estimate_service import EstimateService
from joulecast.store import ProfileSummary
from joulecast.web.page_data import PageData, describe_age

SUMMARY = ProfileSummary("key", "board", "", "torch", "gpu", "measured", 7, (), 1.0)


@pytest.mark.parametrize(
    ("days", "words"),
    [
        (0.01, "less than an hour"),
        (0.05, "1 hour"),
        (0.5, "12 hours"),
        (1.0, "1 day"),
        (40.2, "40 days"),
        (800.0, "2.2 years"),
    ],
)
def test_ages_are_words(days, words):
    assert describe_age(days) == words


def test_details_are_read_again_when_the_profile_has_changed(tmp_path):
    data = PageData(None, EstimateService(str(tmp_path / "none.sqlite")))
    reads = []

    def read():
        reads.append(len(reads))
        return object()

    first = data.keep_details(SUMMARY, read)
    assert data.keep_details(SUMMARY, read) is first and len(reads) == 1
    data.keep_details(replace(SUMMARY, observation_count=8), read)
    assert len(reads) == 2
