"""Bodies are limited in size and time, announced or not."""

from __future__ import annotations

import asyncio

import pytest
from fastapi import HTTPException

from joulecast.web.body_limits import MOST_BODY_BYTES, LimitedBody, find_body_limit

JSON = {"Content-Type": "application/json"}


def test_large_bodies_are_refused_by_what_they_announce(client):
    content = b"[" + b" " * MOST_BODY_BYTES + b"]"
    answer = client.post("/api/estimate", content=content, headers=JSON)
    assert answer.status_code == 413 and "8 MiB" in answer.json()["detail"]
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = client.post("/sign-in", content=b"token=" + b"x" * 5000, headers=form)
    assert answer.status_code == 413 and "4 KiB" in answer.json()["detail"]


def test_large_bodies_are_refused_where_they_announce_nothing(client):
    def send():
        for _ in range(9):
            yield b" " * 2**20

    answer = client.post("/api/estimate", content=send(), headers=JSON)
    assert answer.status_code == 413


def test_networks_may_be_larger():
    assert find_body_limit("/api/networks") > MOST_BODY_BYTES == find_body_limit("/other")


def receive_all(messages, limit_s=10.0, pause_s=0.0):
    """Return what a limited body receives."""
    waiting = list(messages)

    async def receive():
        await asyncio.sleep(pause_s)
        return waiting.pop(0)

    async def run():
        limited = LimitedBody(receive, 10, limit_s)
        return [await limited() for _ in messages]

    return asyncio.run(run())


def part(body, more_body=True):
    return {"type": "http.request", "body": body, "more_body": more_body}


def test_the_size_of_all_parts_counts():
    assert receive_all([part(b"12345"), part(b"67890", False), {"type": "http.disconnect"}])
    with pytest.raises(HTTPException) as caught:
        receive_all([part(b"123456"), part(b"78901", False)])
    assert caught.value.status_code == 413


def test_a_body_has_to_arrive_in_time():
    with pytest.raises(HTTPException) as caught:
        receive_all([part(b"1")] * 5, limit_s=0.05, pause_s=0.03)
    assert caught.value.status_code == 408


def test_the_end_of_a_connection_may_take_longer():
    messages = [part(b"1", False), {"type": "http.disconnect"}]
    assert receive_all(messages, limit_s=0.05, pause_s=0.04)[-1]["type"] == "http.disconnect"
