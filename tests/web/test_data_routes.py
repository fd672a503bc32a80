"""JSON bodies are parsed as files are: once, valid numbers only, not too deep."""

from __future__ import annotations

import pytest
from fastapi import APIRouter, FastAPI
from starlette.testclient import TestClient

from joulecast.web.data_routes import DataRoute


@pytest.fixture(scope="module")
def echo():
    router = APIRouter(route_class=DataRoute)

    @router.post("/")
    def answer(body: list[float]) -> list[float]:
        return body

    app = FastAPI()
    app.include_router(router)
    return TestClient(app)


def send(client, content):
    return client.post("/", content=content, headers={"Content-Type": "application/json"})


def test_values_arrive(echo):
    assert send(echo, b"[1, 2.5]").json() == [1, 2.5]


@pytest.mark.parametrize("content", [b"[NaN]", b"[Infinity]", b"[1", b"[" * 10_000, b"\xff"])
def test_other_bodies_are_refused(echo, content):
    answer = send(echo, content)
    assert answer.status_code == 400 and "not JSON" in answer.json()["detail"]
