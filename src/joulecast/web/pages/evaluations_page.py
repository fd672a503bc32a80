"""Evaluations: estimated against measured, errors, and what they cost in device time."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import Request

from joulecast.store import open_store
from joulecast.web.result_pages import ResultPage, make_result_page
from joulecast.web.result_sources import ResultSource, keep_result
from joulecast.web.web_settings import find_settings


def list_evaluations(request: Request) -> Sequence[ResultSource]:
    """Return the evaluations of the store, the latest first."""
    with open_store(find_settings(request).store, create=False) as opened:
        stored = opened.evaluations.list_all() if opened.exists else ()
    return [
        ResultSource(
            f"store:{one.name}",
            "store",
            f"{one.payload.get('family')} on {one.payload.get('device', {}).get('name')}, "
            f"{one.payload.get('date')}",
            keep_result(one.payload),
        )
        for one in stored
    ]


PAGE = make_result_page(
    ResultPage(
        "evaluation",
        "/evaluations",
        "Evaluations",
        "How far estimates are from measurements of networks that no estimator has seen.",
        "joulecast evaluate FAMILY --out evaluation.json",
        list_evaluations,
    )
)
