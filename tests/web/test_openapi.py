"""The OpenAPI document says what the server does: schemathesis sends all kinds of requests."""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import given, settings
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

from joulecast.web.app import create_app
from joulecast.web.dashboard import WebSettings
from web_examples import BEARER, TOKEN


def list_operations():
    """Return method and path of everything that is documented."""
    paths = create_app(WebSettings()).openapi()["paths"]
    return [(method, path) for path, methods in paths.items() for method in methods]


@pytest.fixture(scope="module")
def schema(make_client):
    app = make_client(token=TOKEN).app
    return schemathesis.openapi.from_asgi("/api/openapi.json", app, headers=BEARER)


@pytest.mark.parametrize(("method", "path"), list_operations())
def test_answers_are_as_documented(schema, method, path):
    @given(case=schema[path][method.upper()].as_strategy())
    @settings(max_examples=6)
    def ask(case):
        # A schema cannot say which networks and devices there are.
        case.call_and_validate(headers=BEARER, excluded_checks=[positive_data_acceptance])

    ask()


@pytest.mark.parametrize("path", ["/api/estimate", "/api/networks"])
def test_invalid_requests_are_refused(schema, path):
    mode = GenerationMode.NEGATIVE

    @given(case=schema[path]["POST"].as_strategy(generation_mode=mode))
    @settings(max_examples=15)
    def ask(case):
        assert case.call_and_validate(headers=BEARER).status_code in range(400, 500)

    ask()


def test_every_page_and_route_is_documented(client):
    paths = set(client.get("/api/openapi.json").json()["paths"])
    twins = {f"/api{page.path}" for page in client.app.state.pages}
    assert {"/api/estimate", "/api/networks", "/health", "/metrics"} | twins <= paths
