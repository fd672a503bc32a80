"""A dashboard for every test, over a store with the profile of a simulated device."""

from collections.abc import Callable, Iterator

import pytest
from starlette.testclient import TestClient

import joulecast
from dashboard_browser import dashboard_data, dashboard_url, fetch  # noqa: F401
from joulecast.web.app import create_app
from joulecast.web.dashboard import WebSettings
from web_examples import ELSEWHERE, HERE, PROFILED, TOKEN


@pytest.fixture(scope="session")
def web_store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a store with the profile of a simulated device."""
    path = str(tmp_path_factory.mktemp("web") / "store.sqlite")
    joulecast.profile(PROFILED, on="simulated:7", batch=8, points=12, store=path)
    return path


@pytest.fixture(scope="module")
def no_shipped_profiles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Leave out the profiles that ship with the package, whose pages take longer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JOULECAST_PROFILES", str(tmp_path_factory.mktemp("profiles")))
        yield


@pytest.fixture(scope="module")
def make_client(web_store: str, no_shipped_profiles: None) -> Callable[..., TestClient]:
    """Return a function that returns a client of a new dashboard."""

    def make(base_url: str = HERE, **settings: object) -> TestClient:
        given = {"store": web_store, "requests_per_second": 0, **settings}
        app = create_app(WebSettings(**given))
        return TestClient(app, base_url, raise_server_exceptions=False, follow_redirects=False)

    return make


@pytest.fixture(scope="module")
def client(make_client: Callable[..., TestClient]) -> Iterator[TestClient]:
    """Return a client of a dashboard without a token."""
    with make_client() as opened:
        yield opened


@pytest.fixture
def guarded(make_client: Callable[..., TestClient]) -> TestClient:
    """Return a client of a dashboard with a token."""
    return make_client(ELSEWHERE, token=TOKEN)
