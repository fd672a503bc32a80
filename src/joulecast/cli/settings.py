"""Settings besides arguments: first the environment, then ./joulecast.toml, then the user's own.

    store = "lab.sqlite"        # for every command that has the option
    meter = "nvml+rapl"

    [estimate]                  # for one command
    grid = "de"

Takes nothing but the files and the environment, gives what click takes for ``default_map``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from joulecast.errors import FileError, InputError

FILE_NAME = "joulecast.toml"


def name_variables(command: click.Command) -> None:
    """Give every option of a command its variable: ``--store`` reads JOULECAST_STORE."""
    for param in command.params:
        if isinstance(param, click.Option) and param.name and param.envvar is None:
            param.envvar = f"JOULECAST_{param.name.upper()}"
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            name_variables(inner)


def read_settings(commands: Iterable[str]) -> dict[str, Any]:
    """Defaults of every command's options from the settings files; the nearer file wins."""
    settings: dict[str, Any] = {name: {} for name in commands}
    for path in (find_user_file(), Path(FILE_NAME)):
        found = _read_file(path)
        shared = {key: value for key, value in found.items() if not isinstance(value, dict)}
        tables = {key: value for key, value in found.items() if isinstance(value, dict)}
        for name in tables:
            if name not in settings:
                known = ", ".join(settings)
                raise InputError(f"{path}: there is no command [{name}]; known are {known}")
        for name, options in settings.items():
            options.update(_as_names({**shared, **tables.get(name, {})}))
    return settings


def find_user_file() -> Path:
    """Where a user's own settings stand."""
    home = Path(os.environ.get("HOME", "/"))
    return Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "joulecast" / FILE_NAME


def _read_file(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    import tomllib

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise FileError(
            f"{path} cannot be read as TOML ({reason}): correct or remove it"
        ) from error


def _as_names(options: dict[str, Any]) -> dict[str, Any]:
    return {key.replace("-", "_"): value for key, value in options.items()}
