"""Fit an estimator again after observations have come from elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulecast.errors import MissingError

if TYPE_CHECKING:
    from joulecast.estimators import Estimator
    from joulecast.store import Store


def refit_profile(store: Store, key: str, estimator: Estimator) -> bool:
    """Fit an estimator to a profile and store the fit; return False if there is too little."""
    from joulecast.campaign.campaign import fit_estimator
    from joulecast.estimators.plausibility import drop_contradicted

    believed = list(drop_contradicted(store.load_observations(key)))
    try:
        fitted = fit_estimator(estimator, believed)
    except MissingError:
        return False
    store.save_fit(key, estimator.name, fitted.to_dict())
    return True
