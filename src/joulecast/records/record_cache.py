"""Cache what follows from a record on the record itself.

A record of a large network takes long to hash, so that a dictionary of results would cost more than
it saves; and results live exactly as long as the record. ``dataclasses.replace`` makes a record
without them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from joulecast.records.codec import Record

R = TypeVar("R", bound=Record)
T = TypeVar("T")


def cache_on_record(function: Callable[[R], T]) -> Callable[[R], T]:
    """Decorate a function of one record, so that it runs once for each record."""
    name = f"{function.__module__}.{function.__qualname__}"

    @wraps(function)
    def find(record: R) -> T:
        cached = vars(record)
        if name not in cached:
            cached[name] = function(record)
        value: T = cached[name]
        return value

    return find
