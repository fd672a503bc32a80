"""Declare the arguments of verbs once: type, default, help, range, and what may set them.

    Batch = Annotated[int | None, Argument("Batch size.", least=1)]

    @verb
    def estimate(net: Any, *, batch: Batch = None, ...) -> Estimate: ...

``verb`` checks and converts what a caller gives, so that a wrong value is one clear line. The
command line (``cli/commands.py``) and the schema of the HTTP API (``web``) are made from the same
signature. An argument that several verbs share is an alias below; one that a single verb has stands
with that verb.

Values are converted by the type of the annotation:

    int      a whole number, of NumPy or PyTorch too
    float    any number but NaN and infinity
    str      text, a path, or a ``torch.device``
    tuple    a list or tuple of these, or one of them alone

None always means the default.
"""

from __future__ import annotations

import functools
import inspect
import math
import operator
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TypeVar, Union, get_args, get_origin

from joulecast.records.trial import OPTIMIZERS, PRECISIONS
from joulecast.system.errors import ArgumentError, InputError, arg
from joulecast.system.units import parse_shape, parse_share

MAX_COUNT = 10**12
"""The most steps, epochs or samples of a run: at a microsecond each, steps would take 12 days."""
MESSAGES = "joulecast.messages"
"""Logger of what a user should know while a verb runs; the command line prints it."""


@dataclass(frozen=True)
class Argument:
    """What people and programs have to know about an argument.

    Attributes:
        parse: Turns a text of the command line or of a settings file into a value.
        is_harmless: Returns whether a text is one of the values that can do no harm.
        is_joined: Whether repeated options are joined by commas, so that two values are noticed.
        is_positional: Whether the command line takes it without the name of an option, although it
            has a default.
    """

    help: str  # one sentence; the command line adds the default
    least: float | None = None  # smallest value
    most: float | None = None  # largest value
    above: float | None = None  # the value must be larger than this
    below: float | None = None  # the value must be smaller than this
    choices: tuple[str, ...] = ()  # allowed values
    metavar: str = ""  # how the value is written, as an example: 3x96x96
    option: str = ""  # name on the command line, where it is another one: --compile
    setting: str = ""  # key in settings and in the environment, if it is not the name of the option
    flag_value: Any = None  # the option is a flag that gives this value: --inference
    default: str = ""  # what help says about the default where that is not the value itself
    parse: Callable[[str], Any] | None = None
    harm: str = ""  # what an untrusted settings file could do with it; empty if it can do no harm
    is_harmless: Callable[[str], bool] | None = None
    is_repeated: bool = False  # whether the option may be given several times
    is_written: bool = False  # whether it is a file that is written; its folder must exist
    is_joined: bool = False
    is_positional: bool = False
    is_negatable: bool = False  # whether the command line also has --no-NAME
    is_after_dashes: bool = False  # whether it is everything after -- on the command line


@dataclass(frozen=True)
class Declaration:
    """An argument of a verb: its name, its type without None, its default and the rest."""

    name: str
    type: Any
    default: Any
    about: Argument
    is_positional: bool = False

    @property
    def option(self) -> str:
        """Name of its option: ``cuda-graphs``."""
        return self.about.option or self.name.rstrip("_").replace("_", "-")

    @property
    def setting(self) -> str:
        """Its key in settings: ``cuda_graphs``."""
        return self.about.setting or self.about.option.replace("-", "_") or self.name

    @property
    def is_required(self) -> bool:
        """Whether callers have to give it."""
        return self.default is inspect.Parameter.empty

    def convert(self, value: Any) -> Any:
        """Return a value as the declared type, within its range.

        Raises:
            ArgumentError: It cannot be converted, or is out of range.
        """
        if value is None or (self.default is not None and value is self.default):
            return value
        if self.about.is_written and not Path(str(value)).parent.is_dir():
            folder = Path(str(value)).parent
            raise ArgumentError(
                f"{arg(self.name)} is {str(value)!r}: there is no folder {folder}: create it, or "
                "give another file"
            )
        if self.about.parse is not None and isinstance(value, str):
            try:
                value = self.about.parse(value)
            except InputError as error:
                raise ArgumentError(f"{arg(self.name)} is {value!r}: {error}") from error
        if get_origin(self.type) is tuple:
            values = value if isinstance(value, (list, tuple)) else (value,)
            return tuple(self._convert_one(one, get_args(self.type)[0]) for one in values)
        return self._convert_one(value, self.type)

    def _convert_one(self, value: Any, kind: Any) -> Any:
        about, name = self.about, arg(self.name)
        if kind in _CONVERTERS:
            converted = _CONVERTERS[kind](value)
            if converted is None:
                raise ArgumentError(f"{name} is {value!r}: give {_NOUNS[kind]}")
            value = converted
        if about.choices and isinstance(value, str) and value not in about.choices:
            close = get_close_matches(value, about.choices, n=1)
            choices = f"choose from {', '.join(about.choices)}"
            hint = f"did you mean {close[0]}?" if close else choices
            raise ArgumentError(f"{name} is {value!r}: {hint}")
        limits = (
            (about.least, operator.ge, "at least"),
            (about.most, operator.le, "at most"),
            (about.above, operator.gt, "more than"),
            (about.below, operator.lt, "less than"),
        )
        given = [(limit, holds, word) for limit, holds, word in limits if limit is not None]
        if kind in (int, float) and not all(holds(value, limit) for limit, holds, _ in given):
            words = " and ".join(f"{word} {limit:,}" for limit, _, word in given)
            raise ArgumentError(f"{name} is {value}: give {_NOUNS[kind]}, {words}")
        return value


if TYPE_CHECKING:
    import torch

    DeviceLike = str | os.PathLike[str] | torch.device

Params = ParamSpec("Params")
Result = TypeVar("Result")
Chosen = TypeVar("Chosen")


def verb(function: Callable[Params, Result]) -> Callable[Params, Result]:
    """Decorate a verb: check and convert its arguments as they are declared, and document them."""

    @functools.wraps(function)
    def call(*args: Params.args, **keywords: Params.kwargs) -> Result:
        signature = _get_signature(function)
        _check_names(function.__name__, keywords, signature)
        bound = signature.bind(*args, **keywords)
        for one in list_arguments(function):
            if one.name in bound.arguments:
                value = one.convert(bound.arguments[one.name])
                if value is None and one.is_required:
                    raise ArgumentError(f"{arg(one.name)} is missing")
                bound.arguments[one.name] = one.default if value is None else value
        return function(*bound.args, **bound.kwargs)

    call.__doc__ = _document(function)
    return call


def select(
    function: Callable[Params, Result], choose: Callable[[Result], Chosen], name: str, doc: str
) -> Callable[Params, Chosen]:
    """Return a verb that takes the same arguments and returns a part of the result."""

    @functools.wraps(function)
    def call(*args: Params.args, **keywords: Params.kwargs) -> Chosen:
        _check_names(name, keywords, _get_signature(inspect.unwrap(function)))
        return choose(function(*args, **keywords))

    call.__name__ = call.__qualname__ = name
    arguments = (function.__doc__ or "").partition("\n\nArgs:")[2]
    call.__doc__ = f"{inspect.cleandoc(doc)}\n\nArgs:{arguments}"
    return call


@functools.cache
def list_arguments(function: Callable[..., Any]) -> tuple[Declaration, ...]:
    """Return the declared arguments of a verb, or of a result's ``report``, in order."""
    function = inspect.unwrap(function)
    found = []
    for name, parameter in _get_signature(function).parameters.items():
        hint = parameter.annotation
        if isinstance(hint, str):
            # Not by typing.get_type_hints: what a verb returns may be defined below it, and what
            # only Python takes may be imported for type checkers alone.
            try:
                hint = eval(hint, function.__globals__)
            except NameError:
                continue
        if get_origin(hint) is not Annotated or not isinstance(get_args(hint)[1], Argument):
            continue
        kind, about, *_ = get_args(hint)
        if get_origin(kind) in (UnionType, Union):
            rest = [one for one in get_args(kind) if one is not NoneType]
            kind = rest[0] if len(rest) == 1 else Any
        is_positional = parameter.kind is not inspect.Parameter.KEYWORD_ONLY
        found.append(Declaration(name, kind, parameter.default, about, is_positional))
    return tuple(found)


def _document(function: Callable[..., Any]) -> str:
    """Return the docstring of a verb with a list of its declared arguments."""
    declared = list_arguments(function)
    names = {one.option: one for one in declared}

    def name_argument(found: re.Match[str]) -> str:
        one = names.get(found[1])
        if one is None:
            return found[0]
        value = one.about.flag_value
        return f"``{one.name}``" if value is None else f"``{one.name}={value!r}``"

    lines = []
    for one in declared:
        text = one.about.help + (f" Default: {one.about.default}." if one.about.default else "")
        lines.append(f"    {one.name}: {re.sub('--([a-z][a-z-]*)', name_argument, text)}")
    return "\n".join([inspect.cleandoc(function.__doc__ or ""), "", "Args:", *lines])


@functools.cache
def _get_signature(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(function)


def _check_names(verb_name: str, keywords: Mapping[str, Any], signature: inspect.Signature) -> None:
    """Raise ArgumentError for a misspelt argument."""
    known = sorted(signature.parameters)
    for name in keywords:
        if name not in known:
            close = get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(known)}"
            raise ArgumentError(f"joulecast.{verb_name} has no argument {name!r}; {hint}")


# ---------------------------------------------------------------------------------------------
# Values


def is_torch_device(value: Any) -> bool:
    """Return whether a value is a ``torch.device``; does not import PyTorch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.device)


def convert_on(value: Any) -> str:
    """Return the name of a device of this machine, which may be a ``torch.device``."""
    name = _convert_text(value)
    if name is None:
        raise ArgumentError(f"{arg('on')} is {value!r}: give text")
    return name


def _convert_count(value: Any) -> int | None:
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def _convert_number(value: Any) -> float | None:
    try:
        # Text has no __float__, although float() reads it.
        number = math.nan if isinstance(value, bool) else float(value.__float__())
    except (AttributeError, TypeError, ValueError, RuntimeError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _convert_text(value: Any) -> str | None:
    if is_torch_device(value):
        return str(value)
    return os.fspath(value) if isinstance(value, (str, os.PathLike)) else None


_CONVERTERS: dict[Any, Callable[[Any], Any]] = {
    bool: lambda value: value if isinstance(value, bool) else None,
    int: _convert_count,
    float: _convert_number,
    str: _convert_text,
}
_NOUNS = {bool: "True or False", int: "a whole number", float: "a number", str: "text"}


def parse_list(text: str) -> tuple[str, ...]:
    """Return values separated by commas, each once."""
    words = tuple(dict.fromkeys(filter(None, (part.strip() for part in text.split(",")))))
    if not words:
        raise InputError("give at least one value, or leave it out")
    return words


def parse_counts(text: str) -> tuple[int, ...]:
    """Return whole numbers from 1 that are separated by commas."""
    words = parse_list(text)
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise InputError("give whole numbers from 1, like 8,16")
    return tuple(map(int, words))


# ---------------------------------------------------------------------------------------------
# Harm that an untrusted settings file could do


def _is_store_here(text: str) -> bool:
    """Return whether a store is in memory, or a file in the current folder or below."""
    if text == ":memory:":
        return True
    # A colon may begin a URL, and a tilde stands for a home folder.
    if ":" in text or text.startswith("~"):
        return False
    return Path(text).resolve().is_relative_to(Path.cwd())


_METER = (
    r"(?:auto|rapl|battery|nvml(?::[\w-]+)?|hwmon(?::[\w:.-]+)?|modelled(?::[\w.]+)?|file:[^+]+"
    r"|later(?::[\w ]+)?|monsoon(?::\w+)?|amd(?::\d+)?|apple)"
)
_ON = r"(?:cpu|cuda(?::\d+)?|(?:mnn|onnx)(?::cpu)?|simulated:\d+)"


def _matches(pattern: str) -> Callable[[str], bool]:
    return lambda text: re.fullmatch(pattern, text) is not None


# ---------------------------------------------------------------------------------------------
# Arguments that several verbs share

Net = Annotated[
    Any, Argument("A family, file.py:make_net, a .json or a .onnx file.", harm="may run code")
]
Batch = Annotated[
    int | None, Argument("Batch size.", least=1, default="the net's own; 1 with --inference")
]
InputShape = Annotated[
    tuple[int, ...] | None,
    Argument("Shape of one sample.", metavar="3x96x96", option="input", parse=parse_shape, least=1),
]
Optimizer = Annotated[str | None, Argument("Optimizer.", choices=OPTIMIZERS, default="sgd")]
Precision = Annotated[
    str | None,
    Argument("Number format; int8 needs --inference.", choices=PRECISIONS, default="fp32"),
]
Loss = Annotated[
    Any, Argument("Loss function.", choices=("cross_entropy", "mse"), default="cross_entropy")
]
Accumulate = Annotated[int | None, Argument(
    "Batches whose gradients are added up before each update; a step is one update.", least=1,
    metavar="N", default="1",
)]  # fmt: skip
Compiled = Annotated[
    bool | None,
    Argument("Compile the net with torch.compile.", option="compile", setting="compiled"),
]
Checkpoint = Annotated[
    bool, Argument("Put the net's repeated blocks under activation checkpointing.")
]
Threads = Annotated[int | None, Argument("CPU threads.", least=0, default="all")]
Processor = Annotated[
    str | None, Argument("Processor of the device, as its runtime names it.", metavar="NAME")
]
CudaGraphs = Annotated[
    bool | None, Argument("Capture the step once as a CUDA graph, and replay it.")
]
Phase = Annotated[str | None, Argument(
    "Run the net instead of training it: forward passes alone.", choices=("train", "inference"),
    option="inference", flag_value="inference",
)]  # fmt: skip
DeviceName = Annotated[Any, Argument(
    "Device with a profile, or of `joulecast devices`, or a TOML data sheet.",
    default="this machine", metavar="NAME",
)]  # fmt: skip
ProfileFile = Annotated[str | None, Argument("Profile file, instead of --device.", metavar="FILE")]
On = Annotated[str | None, Argument(
    "Device of this machine: cpu, cuda:0, mnn:cpu, onnx:cpu, simulated:7, or an agent: "
    "http://board:8377.", default="cpu", metavar="NAME", is_joined=True, harm="may run a plug-in",
    is_harmless=_matches(rf"{_ON}(?:,{_ON})*"),
)]  # fmt: skip
Meter = Annotated[str | None, Argument(
    "Meter (see `joulecast detect`); nvml+rapl adds both readings.", default="auto",
    metavar="NAME", harm="may run a program", is_harmless=_matches(rf"{_METER}(?:\+{_METER})*"),
)]  # fmt: skip
Rounds = Annotated[int, Argument("Windows of each measurement.", least=1)]
Warmup = Annotated[int, Argument(
    "Steps or inferences before the windows.", least=0, metavar="N",
    default="until their time settles",
)]  # fmt: skip
WindowRuns = Annotated[int, Argument(
    "Minimum steps or inferences per window.", least=0, metavar="N",
    default="as many as fit in 0.1 s",
)]  # fmt: skip
RecordedName = Annotated[str, Argument("Record the device under another name.", metavar="NAME")]
Store = Annotated[str | None, Argument(
    "The store: a file, or a postgresql:// URL.", metavar="PATH", harm="is not in this folder",
    is_harmless=_is_store_here,
)]  # fmt: skip
Estimator = Annotated[str, Argument(
    "Estimator: additive, subtractive (the paper's method) or ampere (exactly the paper's).",
    metavar="NAME", default="additive; kernel-gp where the runtime fuses",
)]  # fmt: skip
Level = Annotated[float, Argument(
    "Probability of the interval.", above=0.0, below=1.0, metavar="95%", parse=parse_share,
    default="95%",
)]  # fmt: skip
Confidence = Annotated[float, Argument(
    "Probability with which the budget is kept.", above=0.0, below=1.0, metavar="50%",
    parse=parse_share, default="50%",
)]  # fmt: skip
Steps = Annotated[int | None, Argument("Steps of the run.", least=1, most=MAX_COUNT)]
Inferences = Annotated[
    int | None, Argument("With --inference: inferences of the run.", least=1, most=MAX_COUNT)
]
Epochs = Annotated[int | None, Argument("Passes over --samples.", least=1, most=MAX_COUNT)]
Samples = Annotated[int | None, Argument("Samples of an epoch.", least=1, most=MAX_COUNT)]
Grid = Annotated[
    str | None, Argument("Also print CO2e: grams per kWh, or a region.", metavar="400|de")
]
Price = Annotated[str | None, Argument("Also print the cost: price per kWh.", metavar="0.30EUR")]
Seed = Annotated[int, Argument("Random seed.")]
Gpus = Annotated[int | None, Argument(
    "GPUs of one machine that train together; --batch is per GPU.", least=1, metavar="N",
    default="1",
)]  # fmt: skip
Parallel = Annotated[
    str,
    Argument("How --gpus share the work: data, as DistributedDataParallel does.", metavar="data"),
]
LinkGbS = Annotated[float | None, Argument(
    "Bandwidth between --gpus in one direction.", above=0.0, metavar="GB/S",
    default="the catalogue's",
)]  # fmt: skip
Progress = Callable[[Any], None] | None


def choose_setup_fields(
    phase: str | None, optimizer: Any, loss: Any, **fields: Any
) -> dict[str, Any]:
    """Return the fields of a Setup that were given; inference has no optimizer and loss.

    Raises:
        ArgumentError: An optimizer or a loss was given for inference.
    """
    if phase == "inference":
        for name, value in (("optimizer", optimizer), ("loss", loss)):
            if value is not None:
                raise ArgumentError(f"{arg(name)} is for training: leave it out for inference")
    found = {"phase": phase, "optimizer": optimizer, "loss": loss, **fields}
    return {name: value for name, value in found.items() if value is not None}
