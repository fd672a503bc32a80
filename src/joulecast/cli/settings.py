"""Read settings: first the environment, then ./joulecast.toml, then the user's own file.

    store = "lab.sqlite"        # for every command with that option
    meter = "nvml+rapl"

    [estimate]                  # for one command
    grid = "de"

The result is Click's ``default_map``. ./joulecast.toml comes with a folder, perhaps from somebody
else. Unless the user trusts that folder, it may choose sizes, names and numbers, but not run
programs or code, write files elsewhere, or connect to servers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from keyword import iskeyword
from pathlib import Path
from typing import Any

import click

from joulecast.cli.commands import DeclaredOption
from joulecast.features.arguments import Argument
from joulecast.system.errors import InputError

FILE_NAME = "joulecast.toml"
_MOST_ITEMS = 100


def read_settings(
    commands: Iterable[str], find: Callable[[str], click.Command | None]
) -> dict[str, Any]:
    """Return defaults of every command's options; ./joulecast.toml overrides the user's file.

    Commands are only found, and imported, where there are settings to check.
    """
    settings: dict[str, Any] = {name: {} for name in commands}

    @cache
    def find_options(name: str) -> dict[str, DeclaredOption]:
        return {one.name or "": one for one in list_options(find(name))}

    for path in (find_user_file(), Path(FILE_NAME)):
        try:
            is_missing = not path.is_file()
        except OSError:
            # A folder that may not be searched; reading says so.
            is_missing = False
        if is_missing:
            continue
        from joulecast.system.files import read_toml

        found = read_toml(path)
        shared = {key: value for key, value in found.items() if not isinstance(value, dict)}
        tables = {key: value for key, value in found.items() if isinstance(value, dict)}
        _check_names(path, shared, tables, list(settings), find_options)
        for key, value in found.items():
            if _has_controls([key, value]):
                # Help would show them as a default.
                raise InputError(f"{path}: {key} has control characters: correct or remove it")
        if found and path == Path(FILE_NAME):
            _check_harmless(path, [shared, *tables.values()], list_declared(map(find, settings)))
        for name, options in settings.items():
            for key, value in {**shared, **tables.get(name, {})}.items():
                known = find_options(name).get(_as_name(key))
                if known is not None:
                    typed = _as_typed(path, key, value)
                    # Options that are given once take several values as one text.
                    is_joined = isinstance(typed, list) and not known.multiple
                    options[_as_name(key)] = ",".join(typed) if is_joined else typed
    return settings


def find_user_file() -> Path:
    """Return the path of the user's own settings."""
    home = Path(os.environ.get("HOME", "/"))
    return Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "joulecast" / FILE_NAME


def list_declared(commands: Iterable[click.Command | None]) -> dict[str, list[Argument]]:
    """Return the declarations of options by name."""
    found: dict[str, list[Argument]] = {}
    for command in commands:
        for option in list_options(command):
            found.setdefault(option.name or "", []).append(option.about)
    return found


def find_harmful(
    options: Mapping[str, Any], declared: Mapping[str, Sequence[Argument]]
) -> tuple[str, str] | None:
    """Return the first option that could do harm, and why; None if there is none."""
    for name, value in options.items():
        texts = list(map(str, value if isinstance(value, list) else [value]))
        for about in declared.get(name, ()):
            check = about.is_harmless
            if about.harm and not (check and all(map(check, texts))):
                return name, about.harm
    return None


def _check_names(
    path: Path,
    shared: dict[str, Any],
    tables: dict[str, dict[str, Any]],
    commands: list[str],
    find_options: Callable[[str], Mapping[str, DeclaredOption]],
) -> None:
    """Raise InputError for a misspelt command or option, which would be ignored silently."""
    for name in tables:
        if name not in commands:
            known = ", ".join(commands)
            raise InputError(f"{path}: there is no command [{name}]; choose from {known}")
    for key in shared:
        # Commands are imported one by one, until one has the option.
        if not any(_as_name(key) in find_options(name) for name in commands):
            raise InputError(f"{path}: no command has an option {key!r}; correct or remove it")
    for name, table in tables.items():
        for key in table:
            if _as_name(key) not in find_options(name):
                known = ", ".join(sorted(find_options(name)))
                raise InputError(f"{path}: [{name}] has no option {key!r}; it has {known}")


def _check_harmless(
    path: Path, tables: Iterable[dict[str, Any]], declared: Mapping[str, Sequence[Argument]]
) -> None:
    """Raise InputError for an option that could do harm in a folder that is not trusted."""
    for options in tables:
        values = {_as_name(key): value for key, value in options.items()}
        found = find_harmful(values, declared)
        if found is None:
            continue
        from joulecast.features.trust import check_trusted
        from joulecast.system.files import show_value

        try:
            # The file may be a link to a trusted one, whose relative names mean others here.
            check_trusted(path, path.parent)
        except InputError as error:
            name, reason = found
            option = name.rstrip("_").replace("_", "-")
            raise InputError(
                f"{path}: {name} = {show_value(values[name])} {reason}: remove it and give "
                f"--{option} on the command line; {error}"
            ) from error


def _has_controls(value: Any) -> bool:
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        return any(map(_has_controls, value))
    return isinstance(value, str) and not value.isprintable()


def list_options(command: click.Command | None) -> list[DeclaredOption]:
    """Return the options of a command and of its subcommands, without ``--help``."""
    if command is None:
        return []
    own = [one for one in command.params if isinstance(one, DeclaredOption)]
    inner = command.commands.values() if isinstance(command, click.Group) else ()
    return own + [option for one in inner for option in list_options(one)]


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
        from joulecast.system.files import show_value

        raise InputError(f"{path}: {key} is {show_value(value)}: give a text, a number or a list")
    return str(value)
