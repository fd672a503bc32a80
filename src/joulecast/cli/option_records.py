"""Pass the values of several options to a command as one record.

    @click.command()
    @collect("limits", ProfileOptions, click.option("--points"), click.option("--seconds"))
    def profile(limits: ProfileOptions): ...

Commands may have many options, but their functions take few arguments.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import click

Decorator = Callable[[Any], Any]


def collect(parameter: str, make: Callable[..., Any], *options: Decorator) -> Decorator:
    """Return a decorator that adds options to a command and passes their values as one record.

    Args:
        parameter: Name of the command's parameter that receives the record.
        make: Called with the options' values by name: a dataclass, or a function.
        options: Options made by ``click.option``.
    """
    names = _list_names(options)

    def decorate(function: Any) -> Any:
        @functools.wraps(function)
        def call(*args: Any, **values: Any) -> Any:
            record = make(**{name: values.pop(name) for name in names})
            return function(*args, **{parameter: record}, **values)

        wrapped: Any = call
        for option in reversed(options):
            wrapped = option(wrapped)
        return wrapped

    return decorate


def _list_names(options: Sequence[Decorator]) -> list[str]:
    def command() -> None:
        """Receive the options."""

    for option in options:
        option(command)
    params: list[click.Parameter] = getattr(command, "__click_params__", [])
    return [param.name for param in params if param.name and param.expose_value]
