"""Read settings: first the environment, then ./joulecast.toml, then the user's own file.

    store = "lab.sqlite"        # for every command with that option
    meter = "nvml+rapl"

    [estimate]                  # for one command
    grid = "de"

The result is Click's ``default_map``. ./joulecast.toml may come from somebody else: it may only set
what can do no harm, unless the user trusts the folder.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from keyword import iskeyword
from pathlib import Path
from typing import Any

import click

from joulecast.cli.commands import DeclaredOption
from joulecast.cli.harmless_settings import find_harmful
from joulecast.features.arguments import Argument
from joulecast.system.errors import InputError
from joulecast.system.files import read_toml, show_value

FILE_NAME = "joulecast.toml"
_MOST_ITEMS = 100


def name_variables(command: click.Command) -> None:
    """Let every option of a command read its variable: ``--store`` reads JOULECAST_STORE."""
    for param in command.params:
        if isinstance(param, click.Option) and param.name and param.envvar is None:
            param.envvar = f"JOULECAST_{param.name.rstrip('_').upper()}"
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            name_variables(inner)


def read_settings(
    commands: Iterable[str], find: Callable[[str], click.Command | None]
) -> dict[str, Any]:
    """Return defaults of every command's options; ./joulecast.toml overrides the user's file."""
    settings: dict[str, Any] = {name: {} for name in commands}
    options_of = functools.cache(lambda name: _list_options(find(name)))
    for path in (find_user_file(), Path(FILE_NAME)):
        found = _read_file(path)
        shared = {key: value for key, value in found.items() if not isinstance(value, dict)}
        tables = {key: value for key, value in found.items() if isinstance(value, dict)}
        for name in tables:
            if name not in settings:
                known = ", ".join(settings)
                raise InputError(f"{path}: there is no command [{name}]; choose from {known}")
        _check_names(path, shared, tables, list(settings), options_of)
        _check_printable(path, found)
        if found and path == Path(FILE_NAME):
            _check_harmless(path, [shared, *tables.values()], list_declared(map(find, commands)))
        for name, options in settings.items():
            values = _as_names({**shared, **tables.get(name, {})})
            for key, value in values.items():
                typed = _as_typed(path, key, value)
                # Options that are given once take several values as one text.
                is_joined = isinstance(typed, list) and key not in _list_repeated(find(name))
                options[key] = ",".join(typed) if is_joined else typed
    return settings


def find_user_file() -> Path:
    """Return the path of the user's own settings."""
    home = Path(os.environ.get("HOME", "/"))
    return Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "joulecast" / FILE_NAME


def _read_file(path: Path) -> dict[str, Any]:
    try:
        is_missing = not path.is_file()
    except OSError:
        # A folder that may not be searched; reading says so.
        is_missing = False
    return {} if is_missing else read_toml(path)


def _check_names(
    path: Path,
    shared: dict[str, Any],
    tables: dict[str, dict[str, Any]],
    commands: list[str],
    options_of: Callable[[str], set[str]],
) -> None:
    """Raise InputError for a misspelt option, which would otherwise be ignored silently."""
    for key in shared:
        # Commands are imported one by one, until one has the option.
        if not any(_as_name(key) in options_of(name) for name in commands):
            raise InputError(f"{path}: no command has an option {key!r}; correct or remove it")
    for name, table in tables.items():
        for key in table:
            if _as_name(key) not in options_of(name):
                known = ", ".join(sorted(options_of(name)))
                raise InputError(f"{path}: [{name}] has no option {key!r}; it has {known}")


def _check_printable(path: Path, values: Mapping[str, Any]) -> None:
    """Raise InputError for control characters, which help would show as a default."""
    for key, value in values.items():
        if _has_controls(key) or _has_controls(value):
            raise InputError(f"{path}: {key} has control characters: correct or remove it")


def _has_controls(value: Any) -> bool:
    if isinstance(value, dict):
        return _has_controls(list(value)) or _has_controls(list(value.values()))
    if isinstance(value, list):
        return any(map(_has_controls, value))
    return isinstance(value, str) and not value.isprintable()


def list_declared(commands: Iterable[click.Command | None]) -> dict[str, list[Argument]]:
    """Return the declarations of options by name."""
    found: dict[str, list[Argument]] = {}
    queue = list(commands)
    while queue:
        command = queue.pop()
        queue += command.commands.values() if isinstance(command, click.Group) else ()
        for param in command.params if command else ():
            if isinstance(param, DeclaredOption) and param.name:
                found.setdefault(param.name, []).append(param.about)
    return found


def _check_harmless(
    path: Path, tables: Iterable[dict[str, Any]], declared: Mapping[str, Sequence[Argument]]
) -> None:
    """Raise InputError for an option that could do harm in a folder that is not trusted."""
    for options in tables:
        found = find_harmful(_as_names(options), declared)
        if found is None:
            continue
        # Imported where it is needed, because every command reads settings.
        from joulecast.features.trust import check_trusted

        try:
            # The file may be a link to a trusted one, whose relative names mean others here.
            check_trusted(path, path.parent)
        except InputError as error:
            name, reason = found
            shown = show_value(_as_names(options)[name])
            raise InputError(
                f"{path}: {name} = {shown} {reason}: remove it and give --{name} on the command "
                f"line; {error}"
            ) from error


def _list_options(command: click.Command | None) -> set[str]:
    """Return the names of the options of a command and of its subcommands."""
    if command is None:
        return set()
    inner = command.commands.values() if isinstance(command, click.Group) else ()
    own = {param.name for param in command.params if isinstance(param, click.Option) and param.name}
    return own.union(*map(_list_options, inner)) - {"help"}


def _list_repeated(command: click.Command | None) -> set[str | None]:
    """Return the names of the options of a command that can be given several times."""
    params = command.params if command else []
    return {param.name for param in params if isinstance(param, click.Option) and param.multiple}


def _as_name(key: str) -> str:
    """Return the name of an option's parameter: ``from`` is a keyword, its parameter ``from_``."""
    name = key.replace("-", "_")
    return f"{name}_" if iskeyword(name) else name


def _as_typed(path: Path, key: str, value: Any) -> Any:
    """Return a value as it would be typed as an option, which Click then checks like one."""
    if isinstance(value, (bool, str)):
        return value
    is_nested = isinstance(value, list) and any(isinstance(one, (list, dict)) for one in value)
    if isinstance(value, list) and len(value) <= _MOST_ITEMS and not is_nested:
        return [str(one) for one in value]
    if isinstance(value, (list, dict)):
        raise InputError(f"{path}: {key} is {show_value(value)}: give a text, a number or a list")
    return str(value)


def _as_names(options: dict[str, Any]) -> dict[str, Any]:
    return {_as_name(key): value for key, value in options.items()}
