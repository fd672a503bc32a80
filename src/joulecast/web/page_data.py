"""Keep what several pages need and what takes long to compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fastapi import Request

from joulecast.features.estimate_service import BoundedCache, EstimateService, identify_profile

if TYPE_CHECKING:
    from joulecast.features.device_overview import ProfileDetails
    from joulecast.features.layer_curves import LayerCurve
    from joulecast.store import ProfileSummary

_KEPT = 32
_HOURS_PER_DAY, _DAYS_PER_YEAR = 24.0, 365.25


class PageData:
    """The estimate service of a dashboard, and what was read from its profiles.

    Args:
        store: Path or URL of the store, if not the usual one.
        service: Answers estimates.
    """

    def __init__(self, store: str | None, service: EstimateService) -> None:
        self.store, self.service = store, service
        self._details: BoundedCache[Any, ProfileDetails] = BoundedCache(_KEPT)
        self._curves: BoundedCache[Any, tuple[LayerCurve, ...]] = BoundedCache(_KEPT)

    def keep_details(
        self, summary: ProfileSummary, read: Callable[[], ProfileDetails]
    ) -> ProfileDetails:
        """Return the details of a profile; ``read`` is called where the profile has changed."""
        return self._details.get_or_make(identify_profile(summary), read)

    def list_curves(self, summary: ProfileSummary) -> tuple[LayerCurve, ...]:
        """Return the curves of a profile."""
        from joulecast.features.layer_curves import list_layer_curves

        fitted = self.service.fit(summary.key)
        return self._curves.get_or_make(
            identify_profile(summary), lambda: list_layer_curves(fitted.profile)
        )


def find_page_data(request: Request) -> PageData:
    """Return the data of the dashboard that answers a request."""
    data: PageData = request.app.state.page_data
    return data


def describe_age(days: float) -> str:
    """Return an age in words, such as ``3 days``."""
    if days < 1.0:
        hours = round(days * _HOURS_PER_DAY)
        return "less than an hour" if hours < 1 else _plural(hours, "hour")
    if days < _DAYS_PER_YEAR:
        return _plural(round(days), "day")
    return f"{days / _DAYS_PER_YEAR:.1f} years"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
