"""Limit how often a client may ask: a token bucket for each, and at most so many buckets.

A bucket holds ``burst`` requests and is refilled at ``per_second``. A client is an IPv4 address, or
the network of 64 bits that an IPv6 address is in, because one user has all of those.
"""

from __future__ import annotations

import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Callable

_MOST_CLIENTS = 10_000


class RateLimit:
    """Buckets of all clients; used from one thread.

    Args:
        per_second: Requests per second in the long run; 0 for no limit.
        burst: Requests at once.
        now: Returns seconds of a clock that never goes back.
    """

    def __init__(
        self, per_second: float, burst: float, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_second, self._burst, self._now = per_second, burst, now
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, client: str) -> int:
        """Take one request; return 0 if it is allowed, else the seconds until the next one is."""
        if self._per_second <= 0:
            return 0
        client, now = _find_network(client), self._now()
        left, at = self._buckets.pop(client, (self._burst, now))
        left = min(self._burst, left + (now - at) * self._per_second)
        is_allowed = left >= 1.0
        self._buckets[client] = (left - 1.0 if is_allowed else left, now)
        # The client that asked longest ago has the fullest bucket of all.
        while len(self._buckets) > _MOST_CLIENTS:
            self._buckets.popitem(last=False)
        return 0 if is_allowed else max(1, math.ceil((1.0 - left) / self._per_second))


def _find_network(client: str) -> str:
    if ":" not in client:
        return client
    try:
        return str(ipaddress.ip_network((client.partition("%")[0], 64), strict=False))
    except ValueError:
        return client
