"""JSON bodies are parsed as files are: once, valid numbers only, not too deep."""

from __future__ import annotations

import asyncio
import json

import pytest
from fastapi import APIRouter, FastAPI
from starlette.testclient import TestClient

from joulecast.input_files import parse_json
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


def test_large_bodies_are_not_parsed_on_the_event_loop(echo, monkeypatch):
    is_on_loop = []

    def parse(content):
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            is_on_loop.append(False)
        else:
            is_on_loop.append(True)
        return parse_json(content)

    monkeypatch.setattr("joulecast.web.data_routes.parse_json", parse)
    large = [1.5] * 50_000
    assert send(echo, json.dumps(large).encode()).json() == large
    assert send(echo, b"[1]").json() == [1]
    assert is_on_loop == [False, True]
    assert send(echo, b"[1" + b" " * 100_000).status_code == 400


@pytest.mark.parametrize("content", [b"[NaN]", b"[Infinity]", b"[1", b"[" * 10_000, b"\xff"])
def test_other_bodies_are_refused(echo, content):
    answer = send(echo, content)
    assert answer.status_code == 400 and "not JSON" in answer.json()["detail"]
