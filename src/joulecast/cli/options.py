"""Options that several commands share, and what they mean.

A decorator adds them to a command and hands it one object instead of ten arguments.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import click

from joulecast.api.nets import NamedNet, parse_shape, resolve_net
from joulecast.budgets import RunLength
from joulecast.errors import InputError
from joulecast.records import OPTIMIZERS, PRECISIONS, Setup
from joulecast.units import parse_share

Function = TypeVar("Function", bound=Callable[..., Any])


class Joined(click.Option):
    """An option whose values are joined by commas: whoever reads them sees that there are two."""

    def __init__(self, *args: Any, **extra: Any) -> None:
        super().__init__(*args, **{**extra, "multiple": True})

    def type_cast_value(self, ctx: click.Context, value: Any) -> str:
        # Settings files give a word, the command line a list.
        return value if isinstance(value, str) else ",".join(super().type_cast_value(ctx, value))


json = click.option("--json", is_flag=True, help="Print JSON, for programs.")
on = click.option(
    "--on",
    cls=Joined,
    default=("cpu",),
    show_default=True,
    metavar="DEVICE",
    help="cpu, cuda:0 or simulated:7.",
)
meter = click.option(
    "--meter", default="auto", show_default=True, help="See `joulecast detect`; nvml+rapl adds up."
)
rounds = click.option("--rounds", default=3, show_default=True, help="Windows of each measurement.")
device = click.option("--device", default="", metavar="NAME", help="Another name for the device.")
estimator = click.option(
    "--estimator",
    default="additive",
    show_default=True,
    help="The method; subtractive is the paper's.",
)
store = click.option("--store", metavar="PATH", help="The store: a file, or a postgresql:// URL.")


def read_shape(ctx: Any, param: Any, value: Any) -> tuple[int, ...] | None:
    """Of a callback of click: ``3x96x96`` → sizes."""
    try:
        return None if value is None else parse_shape(str(value))
    except InputError as error:
        raise click.BadParameter(str(error), ctx, param) from error


def read_share(ctx: Any, param: Any, value: Any) -> float:
    """Of a callback of click: ``5%`` or ``0.05`` → a share above 0 and below 1."""
    try:
        share = parse_share(str(value))
    except InputError:
        share = 0.0
    if share in (0.0, 1.0):
        raise click.BadParameter(f"{value!r} is no share: give one like 5% or 0.05", ctx, param)
    return share


def read_length(steps: int | None, epochs: int | None, samples: int | None) -> RunLength:
    """How long a run is, as options say it: steps, or epochs over samples."""
    context = click.get_current_context()
    if (epochs is None) != (samples is None):
        raise click.UsageError("--epochs and --samples belong together", context)
    if epochs is not None and steps is not None:
        raise click.UsageError("give --steps, or --epochs and --samples", context)
    return RunLength(steps, epochs, samples)


@dataclass(frozen=True)
class Asked:
    """A net and how it is trained, as a person asks for it."""

    net: str
    input_shape: tuple[int, ...] | None
    batch: int | None
    setup: Setup

    def resolve(self) -> tuple[NamedNet, Setup]:
        """The net, and its setup with the batch that holds for it."""
        found = resolve_net(self.net, self.batch, self.input_shape)
        return found, replace(self.setup, batch=found.batch)


input_shape = click.option(
    "--input", callback=read_shape, metavar="3x96x96", help="Shape of one sample."
)
loss = click.option(
    "--loss",
    type=click.Choice(("cross_entropy", "mse")),
    default="cross_entropy",
    show_default=True,
)
threads = click.option("--threads", type=int, default=0, help="CPU threads.  [default: all]")
inference = click.option(
    "--inference", is_flag=True, help="Running the net instead of training it."
)
_NET_OPTIONS = (
    click.option("--batch", type=int, help="Samples of a step.  [default: the net's own]"),
    input_shape,
    click.option("--optimizer", type=click.Choice(OPTIMIZERS), default="sgd", show_default=True),
    click.option("--precision", type=click.Choice(PRECISIONS), default="fp32", show_default=True),
    loss,
    threads,
    inference,
)


def net_options(function: Function) -> Function:
    """Add the options that say how a net is trained; the command gets them as ``asked``."""

    @functools.wraps(function)
    def collect(*args: Any, net: str, batch: int | None, **rest: Any) -> Any:
        words = {key: rest.pop(key) for key in ("optimizer", "precision", "loss", "threads")}
        words["phase"] = "inference" if rest.pop("inference") else "train"
        setup = Setup(batch=1 if batch is None else batch, **words)
        asked = Asked(net, rest.pop("input"), batch, setup)
        return function(*args, asked=asked, **rest)

    wrapped: Any = collect
    for option in reversed(_NET_OPTIONS):
        wrapped = option(wrapped)
    result: Function = wrapped
    return result


def say_setup(setup: Setup) -> str:
    """A few words: ``batch 32, sgd, fp32``."""
    words = [f"batch {setup.batch}", setup.precision]
    words.insert(1, "inference" if setup.phase == "inference" else setup.optimizer)
    if setup.threads:
        words.append(f"{setup.threads} thread{'s' if setup.threads > 1 else ''}")
    if setup.loss != "cross_entropy":
        words.append(setup.loss)
    return ", ".join(words)


def list_flags(setup: Setup) -> str:
    """The options that ask for a setup: ``--batch 16 --threads 1``."""
    usual = Setup()
    flags = [f"--batch {setup.batch}"]
    for name in ("optimizer", "precision", "loss", "threads"):
        value = getattr(setup, name)
        if value != getattr(usual, name):
            flags.append(f"--{name} {value}")
    return " ".join(flags + (["--inference"] if setup.phase == "inference" else []))
