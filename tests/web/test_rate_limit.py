"""Buckets fill up again, belong to one client each, and are limited in number."""

from __future__ import annotations

from joulecast.web import rate_limit
from joulecast.web.rate_limit import RateLimit


def test_a_bucket_empties_and_fills():
    clock = [0.0]
    limit = RateLimit(2.0, 3, now=lambda: clock[0])
    assert [limit.take("a") for _ in range(4)] == [0, 0, 0, 1]
    assert limit.take("b") == 0
    clock[0] = 0.5
    assert [limit.take("a"), limit.take("a")] == [0, 1]
    clock[0] = 1000.0
    assert [limit.take("a") for _ in range(4)] == [0, 0, 0, 1]


def test_it_says_how_long_to_wait():
    limit = RateLimit(0.1, 1, now=lambda: 0.0)
    assert [limit.take("a"), limit.take("a")] == [0, 10]


def test_zero_is_no_limit():
    limit = RateLimit(0, 0)
    assert {limit.take("a") for _ in range(100)} == {0} and len(limit) == 0


def test_addresses_of_one_network_share_a_bucket():
    limit = RateLimit(1.0, 1, now=lambda: 0.0)
    assert limit.take("2001:db8::1") == 0
    assert limit.take("2001:db8::ffff%eth0") == 1
    assert limit.take("2001:db8:0:1::1") == 0
    assert limit.take("not:an:address") == 0


def test_the_number_of_buckets_is_limited(monkeypatch):
    monkeypatch.setattr(rate_limit, "_MOST_CLIENTS", 10)
    limit = RateLimit(1.0, 1, now=lambda: 0.0)
    for number in range(100):
        limit.take(f"10.0.0.{number}")
    assert len(limit) == 10
    assert limit.take("10.0.0.99") == 1
