"""Settings besides arguments: first the environment, then ./joulecast.toml, then the user's own.

    store = "lab.sqlite"        # for every command that has the option
    meter = "nvml+rapl"

    [estimate]                  # for one command
    grid = "de"

Takes nothing but the files and the environment, gives what click takes for ``default_map``.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable
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


def read_settings(
    commands: Iterable[str], find: Callable[[str], click.Command | None]
) -> dict[str, Any]:
    """Defaults of every command's options from the settings files; the nearer file wins.

    Args:
        commands: Names of all commands.
        find: A command's name → the command; asked only where there are settings to check.
    """
    settings: dict[str, Any] = {name: {} for name in commands}
    options_of = functools.cache(lambda name: _list_options(find(name)))
    for path in (find_user_file(), Path(FILE_NAME)):
        found = _read_file(path)
        shared = {key: value for key, value in found.items() if not isinstance(value, dict)}
        tables = {key: value for key, value in found.items() if isinstance(value, dict)}
        for name in tables:
            if name not in settings:
                known = ", ".join(settings)
                raise InputError(f"{path}: there is no command [{name}]; known are {known}")
        _check_names(path, shared, tables, list(settings), options_of)
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


def _check_names(
    path: Path,
    shared: dict[str, Any],
    tables: dict[str, dict[str, Any]],
    commands: list[str],
    options_of: Callable[[str], set[str]],
) -> None:
    """A misspelt option would be ignored without a word: complain instead."""
    for key in shared:
        # Commands are imported one after the other, until one has the option.
        if not any(_as_name(key) in options_of(name) for name in commands):
            raise InputError(f"{path}: no command has an option {key!r}; correct or remove it")
    for name, table in tables.items():
        for key in table:
            if _as_name(key) not in options_of(name):
                known = ", ".join(sorted(options_of(name)))
                raise InputError(f"{path}: [{name}] has no option {key!r}; it has {known}")


def _list_options(command: click.Command | None) -> set[str]:
    """Names of a command's options, and of those of its commands."""
    if command is None:
        return set()
    inner = command.commands.values() if isinstance(command, click.Group) else ()
    own = {param.name for param in command.params if isinstance(param, click.Option) and param.name}
    return own.union(*map(_list_options, inner)) - {"help"}


def _as_name(key: str) -> str:
    return key.replace("-", "_")


def _as_names(options: dict[str, Any]) -> dict[str, Any]:
    return {_as_name(key): value for key, value in options.items()}
