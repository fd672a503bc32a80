"""Work waits for few threads, not for ever and not without limit."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass

import pytest
from fastapi import FastAPI, HTTPException, Request
from starlette.testclient import TestClient

from joulecast.web.work_queue import WorkQueue, answer_json


def test_results_and_errors_come_back():
    queue = WorkQueue(1)
    assert asyncio.run(queue.run(max, 1, 2)) == 2
    with pytest.raises(ZeroDivisionError):
        asyncio.run(queue.run(lambda: 1 / 0))
    assert queue.held_count == 0
    queue.close()
    assert asyncio.run(queue.run(max, 3, 4)) == 4
    queue.close()


def test_a_full_queue_refuses():
    queue, release = WorkQueue(1, most_waiting=2), threading.Event()

    async def run():
        running = [asyncio.create_task(queue.run(release.wait, 5)) for _ in range(2)]
        await asyncio.sleep(0.05)
        with pytest.raises(HTTPException) as caught:
            await queue.run(max, 1, 2)
        release.set()
        await asyncio.gather(*running)
        return caught.value

    error = asyncio.run(run())
    assert error.status_code == 503 and error.headers == {"Retry-After": "1"}
    queue.close()


def test_what_takes_too_long_is_given_up():
    queue, release = WorkQueue(1, limit_s=0.05), threading.Event()
    with pytest.raises(HTTPException) as caught:
        asyncio.run(queue.run(release.wait, 5))
    assert caught.value.status_code == 503
    release.set()
    queue.close()


@dataclass(frozen=True)
class Found:
    thread: str
    sizes: tuple[float, ...]


def test_json_is_computed_in_the_threads_of_the_queue():
    app = FastAPI()
    app.state.work_queue = WorkQueue(1)

    @app.get("/")
    async def answer(request: Request):
        return await answer_json(request, find, 2.5)

    def find(size):
        return Found(threading.current_thread().name, (1.0, size))

    found = TestClient(app).get("/").json()
    assert found["thread"].startswith("joulecast-web") and found["sizes"] == [1.0, 2.5]
    app.state.work_queue.close()
