"""Decode the fits of a profile when they are asked for, and know what they were made from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any


class StoredFits(Mapping[str, Any]):
    """Each estimator's fit as JSON, decoded once, when it is first asked for.

    Args:
        decoders: Return the fit of each estimator; raise an error that says what is damaged.
        observation_counts: How many observations the profile had when each fit was made; without
            those of which it is unknown.
    """

    def __init__(
        self, decoders: Mapping[str, Callable[[], Any]], observation_counts: Mapping[str, int]
    ) -> None:
        self.observation_counts = dict(observation_counts)
        self._decoders = dict(decoders)
        self._decoded: dict[str, Any] = {}

    def __getitem__(self, estimator: str) -> Any:
        if estimator not in self._decoded:
            self._decoded[estimator] = self._decoders[estimator]()
        return self._decoded[estimator]

    def __iter__(self) -> Iterator[str]:
        return iter(self._decoders)

    def __len__(self) -> int:
        return len(self._decoders)

    def __contains__(self, estimator: object) -> bool:
        return estimator in self._decoders

    def __repr__(self) -> str:
        return f"StoredFits({', '.join(self)})"


def merge_fits(fits: Mapping[str, Any], others: Mapping[str, Any]) -> StoredFits:
    """Return all fits without decoding any; of an estimator in both, the one of ``others``."""
    owners = {**dict.fromkeys(fits, fits), **dict.fromkeys(others, others)}
    counts = {name: find_fit_count(owner, name) for name, owner in owners.items()}
    return StoredFits(
        {name: partial(owner.__getitem__, name) for name, owner in owners.items()},
        {name: count for name, count in counts.items() if count is not None},
    )


def find_fit_count(fits: Mapping[str, Any], estimator: str) -> int | None:
    """Return how many observations the profile had when a fit was made; None if unknown."""
    return fits.observation_counts.get(estimator) if isinstance(fits, StoredFits) else None
