"""Run the dashboard in uvicorn, on loopback unless there is a token."""

from __future__ import annotations

import socket
from collections.abc import Callable

import uvicorn

from joulecast.agent.addresses import is_loopback
from joulecast.system.errors import InputError, arg
from joulecast.web.app import create_app
from joulecast.web.dashboard import WebSettings

_MOST_CONNECTIONS = 1024
# Streams of progress would otherwise keep a server alive that was told to end.
_SHUTDOWN_S = 2


def serve_dashboard(
    settings: WebSettings, host: str, port: int, on_ready: Callable[[str], None] | None = None
) -> str:
    """Answer requests until the process is interrupted; return the address.

    Args:
        settings: How the dashboard is served.
        host: Address that it listens on.
        port: Port; 0 for any free one.
        on_ready: Called with the address of the dashboard once it listens.

    Raises:
        InputError: Others could reach it without a token, or the port cannot be used.
    """
    check_reach(settings, host)
    app = create_app(settings)
    with open_socket(host, port) as listening:
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=settings.is_behind_proxy,
            forwarded_allow_ips="127.0.0.1,::1",
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_graceful_shutdown=_SHUTDOWN_S,
        )
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{listening.getsockname()[1]}"
        if on_ready is not None:
            on_ready(address)
        uvicorn.Server(config).run([listening])
    return address


def check_reach(settings: WebSettings, host: str) -> None:
    """Raise InputError where others could reach the dashboard without a token."""
    if settings.token:
        return
    if settings.is_behind_proxy:
        raise InputError(
            "everybody who can reach the proxy could use the dashboard: set JOULECAST_TOKEN or "
            f"give {arg('token_file')}, or leave {arg('behind_proxy')} out"
        )
    if not is_loopback(host):
        raise InputError(
            f"on {host} everybody who can reach it could use the dashboard: set JOULECAST_TOKEN or "
            f"give {arg('token_file')}, or leave {arg('host')} out"
        )


def open_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens.

    Raises:
        InputError: The address or port cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind((host, port))
        opened.listen(256)
    except OSError as error:
        opened.close()
        raise InputError(
            f"the dashboard cannot listen on {host}:{port} ({error.strerror}): give another "
            f"{arg('port')} or {arg('host')}"
        ) from error
    return opened
