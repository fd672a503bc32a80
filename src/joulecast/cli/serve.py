"""``joulecast serve``: show profiles and estimates in a browser, and answer programs over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import click

from joulecast.agent.addresses import read_token
from joulecast.cli.commands import VerbCommand, make_command, print_json
from joulecast.cli.streams import write_message
from joulecast.features import arguments as given
from joulecast.features.arguments import Argument, verb
from joulecast.features.nets import require_packages
from joulecast.system.errors import InputError, arg
from joulecast.views.report import Answer, Report, Text

_PACKAGES = {"fastapi": "FastAPI", "uvicorn": "uvicorn", "jinja2": "Jinja2"}

Host = Annotated[
    str,
    Argument(
        "Address to listen on; any but this machine's own needs a token.",
        harm="may let others use the dashboard",
    ),
]
Port = Annotated[int, Argument("Port to listen on; 0 for any free one.", least=0, most=65535)]
TokenFile = Annotated[
    str,
    Argument(
        "File with the token that users sign in with.",
        metavar="FILE",
        default="JOULECAST_TOKEN",
        harm="may hold a token that others know",
    ),
]
Results = Annotated[
    str | None,
    Argument(
        "Also show the JSON results in this folder (--out).",
        metavar="FOLDER",
        harm="shows the files of a folder",
    ),
]
RateLimit = Annotated[int, Argument("Requests per second of one client; 0 for no limit.", least=0)]
BehindProxy = Annotated[
    bool,
    Argument(
        "Trust X-Forwarded-For from a proxy on this machine; needs a token.",
        harm="trusts X-Forwarded-For",
    ),
]


@verb
def serve_pages(
    *,
    host: Host = "127.0.0.1",
    port: Port = 8378,
    token_file: TokenFile = "",
    results: Results = None,
    store: given.Store = None,
    rate_limit: RateLimit = 100,
    behind_proxy: BehindProxy = False,
    on_progress: Callable[[str], None] | None = None,
) -> Answer:
    """Show profiles, estimates and results in a browser, and answer programs over HTTP.

    It listens on this machine only, unless there is a token. It ends when it is interrupted.
    """
    require_packages("the dashboard", _PACKAGES, "web")
    from joulecast.web.app import serve_dashboard
    from joulecast.web.dashboard import WebSettings

    folder = None if results is None else Path(results).expanduser()
    if folder is not None and not folder.is_dir():
        raise InputError(f"there is no folder {folder}: give {arg('results')} a folder of results")
    settings = WebSettings(
        store=store,
        results=folder and folder.resolve(),
        token=read_token(token_file),
        requests_per_second=rate_limit,
        is_behind_proxy=behind_proxy,
    )
    address = serve_dashboard(settings, host, port, on_progress)
    return Answer({"address": address}, Report("", (Text("The dashboard has ended."),)))


@contextmanager
def _announce(values: Mapping[str, Any]) -> Iterator[Callable[[str], None]]:
    """Yield a function that tells the address of the dashboard once it listens."""
    if click.get_current_context().params["json"]:
        yield lambda address: print_json({"address": address})
    else:
        yield lambda address: write_message(f"The dashboard is at {address}; Ctrl+C ends it.")


serve = make_command("serve", serve_pages, VerbCommand(has_out=False, progress=_announce))
