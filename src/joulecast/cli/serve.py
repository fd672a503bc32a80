"""``joulecast serve``: show profiles and estimates in a browser, and answer programs over HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from joulecast.agent.addresses import read_token
from joulecast.cli import options
from joulecast.cli.option_records import collect
from joulecast.cli.streams import write_message
from joulecast.cli.terminal import print_json
from joulecast.errors import InputError
from joulecast.features.nets import require_packages

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 8378
_PACKAGES = {"fastapi": "FastAPI", "uvicorn": "uvicorn", "jinja2": "Jinja2"}


@dataclass(frozen=True)
class DashboardOptions:
    """Where the dashboard listens, who may use it and what it shows.

    Attributes:
        token_file: File with the token; by default the environment's.
        results: Folder of JSON results that other commands wrote.
        rate_limit: Requests per second of one client; 0 for no limit.
        behind_proxy: A proxy on this machine tells who the client is.
    """

    host: str
    port: int
    token_file: str
    results: str | None
    store: str | None
    rate_limit: int
    behind_proxy: bool

    def find_results(self) -> Path | None:
        """Return the folder of results; None where none is given.

        Raises:
            InputError: It is not a folder.
        """
        if self.results is None:
            return None
        folder = Path(self.results).expanduser()
        if not folder.is_dir():
            raise InputError(f"there is no folder {folder}: give --results the folder of results")
        return folder.resolve()


@click.command()
@collect(
    "serving",
    DashboardOptions,
    click.option(
        "--host",
        default=DEFAULT_HOST,
        show_default=True,
        help="Address to listen on; any but this machine's own needs a token.",
    ),
    click.option("--port", type=click.IntRange(0, 65535), default=DEFAULT_PORT, show_default=True),
    click.option(
        "--token-file",
        default="",
        metavar="FILE",
        help="File with the token that users sign in with.  [default: JOULECAST_TOKEN]",
    ),
    click.option(
        "--results", metavar="FOLDER", help="Also show the JSON results in this folder (--out)."
    ),
    options.store,
    click.option(
        "--rate-limit",
        type=click.IntRange(0),
        default=100,
        show_default=True,
        help="Requests per second of one client; 0 for no limit.",
    ),
    click.option(
        "--behind-proxy",
        is_flag=True,
        help="Trust X-Forwarded-For from a proxy on this machine; needs a token.",
    ),
)
@click.option("--json", is_flag=True, help="Print the address as JSON once it listens.")
def serve(serving: DashboardOptions, json: bool) -> None:
    """Show profiles, estimates and results in a browser, and answer programs over HTTP.

    It listens on this machine only, unless there is a token. It ends when it is interrupted.
    """
    require_packages("the dashboard", _PACKAGES, "web")
    from joulecast.web.server import serve_dashboard
    from joulecast.web.web_settings import WebSettings

    settings = WebSettings(
        store=serving.store,
        results=serving.find_results(),
        token=read_token(serving.token_file),
        requests_per_second=serving.rate_limit,
        is_behind_proxy=serving.behind_proxy,
    )
    ready = _print_ready if json else _say_ready
    serve_dashboard(settings, serving.host, serving.port, ready)


def _print_ready(address: str) -> None:
    print_json({"address": address})


def _say_ready(address: str) -> None:
    write_message(f"The dashboard is at {address}; Ctrl+C ends it.")
