"""Scores: the label of each device, from A to G."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from fastapi import Request

from joulecast.errors import JoulecastError, StoreError
from joulecast.features.score import score
from joulecast.records import Json
from joulecast.store import ProfileSummary, open_store
from joulecast.web.result_pages import ResultPage, make_result_page
from joulecast.web.result_sources import ResultSource, keep_result
from joulecast.web.web_settings import find_settings

_KEPT = 64


def list_scores(request: Request) -> Sequence[ResultSource]:
    """Return the scores of devices with stored observations, then those that were published."""
    store = find_settings(request).store
    with open_store(store, create=False) as opened:
        profiles = opened.list_profiles()
    found = [(one, _find_score(store, one)) for one in profiles]
    own = [
        ResultSource(f"store:{one.key}", "store", str(one), keep_result(data))
        for one, data in found
        if data
    ]
    return [*own, ResultSource("published", "published", "DeepEn2023: eight phones", load_phones)]


@lru_cache(maxsize=_KEPT)
def score_profile(store: str | None, profile: ProfileSummary) -> Json | None:
    """Return the score of a profile; None if the reference applications were not observed.

    Raises:
        StoreError: The store cannot be read; it is tried again the next time.
    """
    try:
        return score(devices=(profile.key,), store=store).to_dict()
    except StoreError:
        raise
    except JoulecastError:
        return None


def load_phones() -> Json:
    """Return the scores of the phones of DeepEn2023."""
    return score(published=True).to_dict()


def _find_score(store: str | None, profile: ProfileSummary) -> Json | None:
    try:
        return score_profile(store, profile)
    except StoreError:
        # A single profile that cannot be read does not hide all others.
        return None


PAGE = make_result_page(
    ResultPage(
        "score",
        "/scores",
        "Scores",
        "Labels of devices from A to G, by the energy and power of inferences.",
        "joulecast score --out score.json",
        list_scores,
    )
)
