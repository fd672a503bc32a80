"""The process that measures an atlas: ``python -m joulecast.features.atlas_worker``.

The request is JSON on stdin; every line of the answer is a message in JSON:

    {"profile": key}            whose observations it adds to the store
    {"trial": observation}      what is measured next, without values: should the process die while
                                it measures, the other end stores it as refused
    {"progress": values}        the state of the campaign
    {"lost": reason}            the process can no longer use the device
    {"error": [class, text]}    one of Joulecast's errors
    {"run": values}             the end

It writes observations to the store itself, and stops when nobody reads its messages any more.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TextIO

from joulecast.campaign import find_profile_key
from joulecast.campaign.atlas_campaign import AtlasLimits, run_atlas
from joulecast.errors import DeviceLostError, JoulecastError
from joulecast.features.measurers import open_any_measurer
from joulecast.features.options import MeasureOptions
from joulecast.store import open_store

Send = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True)
class AtlasRequest:
    """Which device is measured, how long, and where observations are stored.

    Attributes:
        campaign_key: The campaign in the store that may be asked to stop; empty for none.
    """

    measuring: MeasureOptions
    limits: AtlasLimits
    store: str | None = None
    campaign_key: str = ""

    def to_json(self) -> str:
        """Return the request as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> AtlasRequest:
        """Return a request from its JSON."""
        data = json.loads(text)
        limits = AtlasLimits(**data["limits"])
        measuring = MeasureOptions(**data["measuring"])
        return cls(measuring, limits, data["store"], data["campaign_key"])


def main() -> None:
    """Measure what the request asks for."""
    # What libraries print must not mix with messages.
    messages = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    request = AtlasRequest.from_json(sys.stdin.read())
    try:
        answer_request(request, lambda message: _write(messages, message))
    except BrokenPipeError:
        os._exit(1)


def answer_request(request: AtlasRequest, send: Send) -> None:
    """Measure an atlas and send messages about it."""
    try:
        with open_any_measurer(request.measuring) as measurer, open_store(request.store) as store:
            send({"profile": find_profile_key(measurer)})
            run = run_atlas(
                measurer,
                store,
                request.limits,
                on_trial=lambda trial: send({"trial": trial.to_dict()}),
                on_progress=lambda progress: send({"progress": asdict(progress)}),
                is_stop_requested=partial(store.campaigns.is_stop_requested, request.campaign_key),
            )
            send({"run": asdict(run)})
    except DeviceLostError as error:
        send({"lost": str(error)})
    except JoulecastError as error:
        send({"error": [type(error).__name__, str(error)]})


def _write(messages: TextIO, message: Mapping[str, Any]) -> None:
    messages.write(json.dumps(message, separators=(",", ":")) + "\n")
    messages.flush()


if __name__ == "__main__":
    main()
    # Nothing is left to do, and a device that failed may hang while it is closed.
    sys.stdout.flush()
    os._exit(0)
