"""Everything that reads outside data, each with a way to draw a hostile input for it.

A reader writes a damaged file or makes a hostile text and returns what reads it: a function that
may return or raise one of Joulecast's errors, and nothing else. ``list_readers`` returns all of
them; tests run a few inputs of each, ``run.py`` many.
"""

from __future__ import annotations

import json
import random
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import click
import onnx
from onnx import TensorProto, helper

from benchmarks.robustness.hostile_inputs import damage_bytes, damage_value, make_text, pack, seal
from joulecast.cli.main import cli
from joulecast.cli.settings import read_settings
from joulecast.devices.detect import parse_on
from joulecast.estimators import estimate_network, find_estimator
from joulecast.families import make_family
from joulecast.features.estimate import parse_seen
from joulecast.features.inspect import Inspection
from joulecast.features.nets import resolve_name
from joulecast.features.plan.problem import parse_plan_request
from joulecast.features.profiles import read_outside_profile
from joulecast.features.run import parse_budget
from joulecast.features.search.space import parse_dimension
from joulecast.meters.command import read_quantity
from joulecast.meters.file import read_samples
from joulecast.records import Device, Observation, Profile, Setup, Trial
from joulecast.store import open_store
from joulecast.store.database import find_url
from joulecast.store.files import read_network, read_profile, write_network, write_profile
from joulecast.store.places import choose_place
from joulecast.system.errors import InputError, JoulecastError
from joulecast.system.files import read_toml
from joulecast.system.units import (
    parse_bytes,
    parse_duration,
    parse_energy,
    parse_grid,
    parse_price,
    parse_shape,
    parse_share,
)

Json = dict[str, Any]
Read = Callable[[], object]
# Draws a hostile input and returns what reads it.
MakeHostile = Callable[[random.Random], Read]

SECRET = "s3cret-of-a-url"
"""A password in hostile URLs; no message may contain it."""
MARKER = "code-was-run"
"""A file that hostile inputs try to create by running code."""

_PRUNED = make_family("cnn5:2,2,2,2")
_SAMPLES = "time,watts\n1700000000.0,3.5\n2030-01-01T00:00:00Z,3.6\n1900000000.5,4\n"
_ESTIMATORS = ("additive", "flops", "work-linear")
_NETWORKS = ("lenet5", "lstm", "transformer:8,1")
_SETUP = Setup(batch=10)
_NOW = datetime(2030, 1, 1, tzinfo=UTC)
_TEXTS: dict[Callable[[str], object], Sequence[str]] = {
    parse_energy: ("15Wh", "300 mWh", "5J"),
    parse_grid: ("400", "0.4kg/kWh", "de"),
    parse_price: ("0.30", "0.30EUR", "€0.30/kWh"),
    parse_share: ("60%", "0.6"),
    parse_duration: ("45s", "1h30min", "2d"),
    parse_bytes: ("8GiB", "500MB"),
    parse_shape: ("3x96x96", "28"),
    parse_budget: ("60%", "2J/step", "1kJ"),
    parse_on: ("cpu", "cuda:0", "simulated:7"),
    parse_dimension: ("c1=8..64/8", "lr=1e-4..1e-1/log", "batch=16,32"),
    parse_seen: ("12J/100",),
    read_quantity: ("3.5 J", '{"energy_j": 2}', "12 mWh"),
    make_family: ("cnn5:16,32,64,128", "resnet18:32", "transformer:64,2"),
}
_URLS = (
    f"postgresql://user:{SECRET}@host:5432/db",
    f"POSTGRES://user:{SECRET}@host/db?sslmode=require",
    f"postgresql+psycopg://host/db?password={SECRET}",
    f"mysql+pymysql://user:{SECRET}@host/db",
    f"redis://:{SECRET}@host/0",
    "sqlite:///store.sqlite",
    "store.sqlite",
)
_PLAN = """
[[job]]
name = "keyboard"
net = "lenet5"
batch = 10
steps = 200000
deadline = "6h"
devices = ["phone"]

[[device]]
name = "phone"
power_w = 3.0
flops_per_s = 2e10
battery_wh = 15
charge = "80%"
reserve = 0.2

[[device.charging]]
from = "1h"
to = "2h"
charger_w = 10
"""
_SETTINGS: Json = {
    "batch": 8,
    "threads": 1,
    "precision": "fp32",
    "store": "store.sqlite",
    "json": True,
    "inspect": {"blocks": False, "input": "1x28x28"},
    "measure": {"meter": "nvml"},
}


@dataclass(frozen=True)
class Reader:
    """Something that reads outside data.

    Attributes:
        draw: Draws a hostile input and returns what reads it.
        is_slow: Whether one input takes more than a few milliseconds.
    """

    name: str
    draw: MakeHostile
    is_slow: bool = False


class HostileFolder:
    """A folder with valid files, of which damaged copies are written and read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        marker = f"open({str(folder / MARKER)!r}, 'w').close()"
        (folder / "evil.py").write_text(f"def go(*args):\n    {marker}\n", encoding="utf-8")
        self._empty = folder / "no-profiles"
        self._empty.mkdir()
        profile = _make_profile()
        write_profile(profile, folder / "profile.json")
        self._profile = (folder / "profile.json").read_bytes()
        self._content: Json = json.loads(self._profile)["profile"]
        self._observations = [one.to_dict() for one in profile.observations]
        self._fits = {
            name: find_estimator(name).fit(profile.observations).to_dict() for name in _ESTIMATORS
        }
        self._networks = [make_family(name) for name in _NETWORKS]
        write_network(self._networks[0], folder / "network.json")
        self._network = (folder / "network.json").read_bytes()
        self._onnx = make_onnx_file()
        with open_store(folder / "valid.sqlite", shipped=self._empty) as store:
            store.import_profile(profile)
        self._store = (folder / "valid.sqlite").read_bytes()

    def list_readers(self) -> list[Reader]:
        """Return every reader of outside data."""
        return [
            Reader("profile, bytes", self._damage_profile_bytes),
            Reader("profile, values, sealed again", self._damage_profile),
            Reader("observations, sealed again", self._damage_observations, is_slow=True),
            Reader("fits, sealed again", self._damage_fit, is_slow=True),
            Reader("network, bytes", self._damage_network_bytes),
            Reader("network, values", self._damage_network),
            Reader("ONNX file, bytes", self._damage_onnx_bytes),
            Reader("ONNX file, graph", self._damage_onnx_graph),
            Reader("store, bytes", self._damage_store, is_slow=True),
            Reader("jobs, bytes", self._damage_plan_bytes),
            Reader("jobs, values", self._damage_plan),
            Reader("settings, bytes", self._damage_settings_bytes, is_slow=True),
            Reader("settings, values", self._damage_settings, is_slow=True),
            Reader("samples of a meter", self._damage_samples),
            Reader("pruned modules", self._damage_pruned, is_slow=True),
            Reader("texts", _draw_text),
            Reader("URLs of stores", _draw_url),
        ]

    def has_run_code(self) -> bool:
        """Return whether an input made Joulecast run code."""
        return (self.folder / MARKER).exists()

    def _damage_profile_bytes(self, rng: random.Random) -> Read:
        path = self._write("damaged.json", damage_bytes(self._profile, rng))
        return lambda: _use_profile(read_profile(path))

    def _damage_profile(self, rng: random.Random) -> Read:
        content = damage_value(self._content, rng)
        path = self._write("damaged.json", seal("profile", 2, content))
        return lambda: _use_profile(read_profile(path))

    def _damage_observations(self, rng: random.Random) -> Read:
        rows = damage_value(self._observations, rng)
        count = len(rows) if isinstance(rows, list) else 1
        summary = {**self._content["summary"], "count": count}
        # Without its fit, the estimator learns from what is there.
        content = {**self._content, "summary": summary, "observations": pack(rows), "fits": {}}
        path = self._write("damaged.json", seal("profile", 2, content))
        return lambda: _use_profile(read_outside_profile(path))

    def _damage_fit(self, rng: random.Random) -> Read:
        name = rng.choice(sorted(self._fits))
        fits = {name: {"packed": pack(damage_value(self._fits[name], rng))}}
        path = self._write("damaged.json", seal("profile", 2, {**self._content, "fits": fits}))

        def read() -> None:
            profile = read_outside_profile(path)
            estimate_network(profile, make_family("lenet5"), _SETUP, name)

        return read

    def _damage_network_bytes(self, rng: random.Random) -> Read:
        path = self._write("damaged.json", damage_bytes(self._network, rng))
        return lambda: self._use_network(path)

    def _damage_network(self, rng: random.Random) -> Read:
        content = damage_value(rng.choice(self._networks).to_dict(), rng)
        path = self._write("damaged.json", seal("network", 1, content))
        return lambda: self._use_network(path)

    def _damage_onnx_bytes(self, rng: random.Random) -> Read:
        path = self._write("damaged.onnx", damage_bytes(self._onnx, rng))
        return lambda: self._use_network(path)

    def _damage_onnx_graph(self, rng: random.Random) -> Read:
        path = self._write("damaged.onnx", damage_graph(self._onnx, rng))
        return lambda: self._use_network(path)

    def _use_network(self, path: Path) -> None:
        is_onnx = path.suffix == ".onnx"
        network = resolve_name(str(path)).network if is_onnx else read_network(path)
        json.dumps(Inspection(network, network, _SETUP).to_dict())
        profile = read_profile(self.folder / "profile.json")
        json.dumps(estimate_network(profile, network, _SETUP, "flops").to_dict(), allow_nan=False)

    def _damage_store(self, rng: random.Random) -> Read:
        for old in self.folder.glob("damaged.sqlite*"):
            old.unlink()
        path = self._write("damaged.sqlite", damage_bytes(self._store, rng))
        return lambda: self._use_store(path)

    def _use_store(self, path: Path) -> None:
        with open_store(path, create=False, wait_s=0.1, shipped=self._empty) as store:
            for one in store.list_profiles():
                _use_profile(store.load_profile(one.key))

    def _damage_plan_bytes(self, rng: random.Random) -> Read:
        path = self._write("jobs.toml", damage_bytes(_PLAN.encode(), rng))
        return lambda: parse_plan_request(read_toml(path), _NOW)

    def _damage_plan(self, rng: random.Random) -> Read:
        data = damage_value(tomllib.loads(_PLAN), rng)
        return lambda: parse_plan_request(data if isinstance(data, dict) else {}, _NOW)

    def _damage_settings_bytes(self, rng: random.Random) -> Read:
        self._write("joulecast.toml", damage_bytes(_format_toml(_SETTINGS).encode(), rng))
        return _parse_command

    def _damage_settings(self, rng: random.Random) -> Read:
        data = damage_value(_SETTINGS, rng)
        text = _format_toml(data if isinstance(data, dict) else {"batch": data})
        self._write("joulecast.toml", text.encode(errors="replace"))
        return _parse_command

    def _damage_samples(self, rng: random.Random) -> Read:
        path = self._write("power.csv", damage_bytes(_SAMPLES.encode(), rng))
        return lambda: read_samples(path, 1e9)

    def _damage_pruned(self, rng: random.Random) -> Read:
        # PyTorch is imported when the first folder is read.
        from joulecast.torch_nets.build import build_net
        from joulecast.torch_nets.channel_removal import load_pruned, save_pruned

        folder = self.folder / "pruned"
        if not folder.exists():
            save_pruned(build_net(_PRUNED), folder, network=_PRUNED, removed={})
            self._architecture = json.loads((folder / "architecture.json").read_text())
        data = damage_value(self._architecture, rng)
        if isinstance(data, dict) and rng.random() < 0.2:
            data["net"] = "evil.py:go"
        self._write("pruned/architecture.json", json.dumps(data).encode())
        return lambda: load_pruned(folder)

    def _write(self, name: str, content: bytes) -> Path:
        path = self.folder / name
        path.write_bytes(content)
        return path


def _make_profile() -> Profile:
    """Return a profile with a few observations, and a fit that was made from them."""
    device = Device("board", memory_bytes=10**9)
    observations = tuple(
        Observation(
            Trial(make_family(name), Setup(batch=batch)),
            energy_j=0.5 * batch,
            energy_sd_j=0.01,
            duration_s=0.01 * batch,
            run="first",
            device=device,
            runtime="torch-2.13.0",
            covers="cpu",
            taken_at_s=1.7e9 + batch,
            cost_s=2.0,
        )
        for name in ("lenet5", "cnn5:4,8,16,32")
        for batch in (4, 8)
    )
    profile = Profile(device, "torch-2.13.0", "cpu", "measured", observations)
    fitted = find_estimator("flops").fit(observations)
    return profile.add_fits({"flops": fitted.to_dict()})


def _use_profile(profile: Profile) -> None:
    """Read all of a profile, write it again, and estimate with it."""
    json.dumps(replace(profile, fits=dict(profile.fits)).to_dict(), allow_nan=False)
    found = estimate_network(profile, make_family("lenet5"), _SETUP, "flops")
    json.dumps(found.to_dict(), allow_nan=False)


def _parse_command() -> None:
    """Parse a command line with the settings of the present folder."""
    context = click.Context(cli)
    settings = read_settings(cli.list_commands(context), partial(cli.get_command, context))
    command = cli.get_command(context, "inspect")
    assert command is not None
    try:
        command.make_context("inspect", ["lenet5"], default_map=settings["inspect"])
    except click.ClickException as error:
        # The program shows it in one line.
        raise InputError(error.format_message()) from error


def _draw_text(rng: random.Random) -> Read:
    parse = rng.choice(list(_TEXTS))
    text = make_text(rng, _TEXTS[parse])
    return lambda: parse(text)


def _draw_url(rng: random.Random) -> Read:
    # In a URL that is damaged inside nobody can tell what was the password.
    is_whole = rng.random() < 0.5
    around = make_text(rng), make_text(rng)
    url = rng.choice(_URLS).join(around) if is_whole else make_text(rng, _URLS)

    def read() -> None:
        try:
            find_url(choose_place(url))
        except JoulecastError as error:
            if is_whole and SECRET in str(error):
                raise AssertionError(f"{url!r} shows its password: {error}") from error
            raise

    return read


def _format_toml(tables: Json) -> str:
    """Return TOML of settings; values that TOML does not have become texts."""
    plain = {key: value for key, value in tables.items() if not isinstance(value, dict)}
    lines = [f"{json.dumps(key)} = {_format_value(value)}" for key, value in plain.items()]
    for name, table in tables.items():
        if isinstance(table, dict):
            lines.append(f"[{json.dumps(name)}]")
            lines += [f"{json.dumps(key)} = {_format_value(one)}" for key, one in table.items()]
    return "\n".join(lines) + "\n"


def _format_value(value: Any) -> str:
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return "inf"
    if isinstance(value, list):
        return "[" + ", ".join(map(_format_value, value)) + "]"
    if isinstance(value, dict):
        pairs = (f"{json.dumps(key)} = {_format_value(one)}" for key, one in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, float) and value != value:
        return "nan"
    return json.dumps("" if value is None else value)


# ---------------------------------------------------------------------------------------------
# ONNX files: graphs with other operators, sizes, names and connections

_NUMBERS = (-(2**63), -1, 0, 1, 2, 7, 2**31, 2**62, 10**12)
_OPERATORS = (
    "Loop", "If", "Einsum", "Tile", "TopK", "Resize", "Pad", "Range", "ConstantOfShape", "Expand",
    "OneHot", "GatherND", "LSTM", "Attention", "Split", "Slice", "Squeeze", "Concat", "NonZero",
    "ConvTranspose", "QLinearConv", "ScatterND", "Pow", "Shape", "Wobble",
)  # fmt: skip
_LOCATIONS = ("/etc/passwd", "../x", "w.bin", "\0", "a" * 3000, "C:\\x")


def make_onnx_file() -> bytes:
    """Return a small model with convolutions, attention, and shapes that are computed."""
    nodes = [
        _node("Conv", "x w b", "c", pads=[1, 1, 1, 1], name="/stem/Conv"),
        _node("Sigmoid", "c", "s"),
        _node("Mul", "c s", "a"),
        _node("Shape", "a", "sizes"),
        _node("Gather", "sizes zero", "batch"),
        _node("Concat", "batch rest", "wanted", axis=0),
        _node("Reshape", "a wanted", "r"),
        _node("Transpose", "r", "t", perm=[0, 2, 1]),
        _node("MatMul", "t q", "query", name="/block.0/q/MatMul"),
        _node("Transpose", "t", "key", perm=[0, 2, 1]),
        _node("MatMul", "query key", "scores"),
        _node("Softmax", "scores", "p", axis=-1),
        _node("MatMul", "p t", "o"),
        _node("Add", "o t", "sum"),
        _node("ReduceMean", "sum axes", "mean", keepdims=0),
        _node("Gemm", "mean v", "y", transB=1, name="/head/Gemm"),
    ]
    weights = [
        _make_weight("w", 8, 3, 3, 3),
        _make_weight("b", 8),
        _make_weight("q", 8, 8),
        _make_weight("v", 10, 8),
        helper.make_tensor("zero", TensorProto.INT64, (1,), (0,)),
        helper.make_tensor("rest", TensorProto.INT64, (2,), (8, -1)),
        helper.make_tensor("axes", TensorProto.INT64, (1,), (1,)),
    ]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ("batch", 3, 6, 6))
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, ("batch", 10))
    graph = helper.make_graph(nodes, "net", [given], [result], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    content: bytes = model.SerializeToString()
    return content


def damage_graph(content: bytes, rng: random.Random) -> bytes:
    """Return a model whose graph was changed in a few places, so that it can still be parsed."""
    model = onnx.ModelProto.FromString(content)
    for _ in range(rng.choice((1, 1, 2, 3))):
        rng.choice(_DAMAGES)(model.graph, rng)
    damaged: bytes = model.SerializeToString()
    return damaged


def _change_attribute(graph: Any, rng: random.Random) -> None:
    node = rng.choice([one for one in graph.node if one.attribute])
    attribute = rng.choice(node.attribute)
    if attribute.ints:
        attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(_NUMBERS)
    elif attribute.type == onnx.AttributeProto.INT:
        attribute.i = rng.choice(_NUMBERS)
    else:
        attribute.type = rng.randrange(12)


def _change_operator(graph: Any, rng: random.Random) -> None:
    node = rng.choice(graph.node)
    node.op_type = rng.choice((*_OPERATORS, *(one.op_type for one in graph.node)))
    node.domain = rng.choice(("", "", "", "com.microsoft", "com.acme"))


def _change_input(graph: Any, rng: random.Random) -> None:
    node = rng.choice(graph.node)
    names = [name for one in graph.node for name in (*one.input, *one.output)]
    node.input[rng.randrange(len(node.input))] = rng.choice((*names, "", "\x1b[2J"))


def _add_input(graph: Any, rng: random.Random) -> None:
    node = rng.choice(graph.node)
    node.input.append(rng.choice((*node.output, *node.input)))


def _change_weight(graph: Any, rng: random.Random) -> None:
    weight = rng.choice(graph.initializer)
    weight.dims[rng.randrange(len(weight.dims))] = rng.choice(_NUMBERS)


def _move_weight(graph: Any, rng: random.Random) -> None:
    weight = rng.choice(graph.initializer)
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    entry = weight.external_data.add()
    entry.key, entry.value = rng.choice(("location", "length")), rng.choice(_LOCATIONS)


def _change_constant(graph: Any, rng: random.Random) -> None:
    constant = rng.choice([one for one in graph.initializer if one.int64_data])
    constant.int64_data[rng.randrange(len(constant.int64_data))] = rng.choice(_NUMBERS)


def _change_shape(graph: Any, rng: random.Random) -> None:
    dims = graph.input[0].type.tensor_type.shape.dim
    rng.choice(dims).dim_value = rng.choice(_NUMBERS)


def _remove_node(graph: Any, rng: random.Random) -> None:
    del graph.node[rng.randrange(len(graph.node))]


_DAMAGES = (
    _change_attribute, _change_operator, _change_input, _add_input, _change_weight, _move_weight,
    _change_constant, _change_shape, _remove_node,
)  # fmt: skip


def _node(op: str, inputs: str, output: str, **attributes: Any) -> Any:
    return helper.make_node(op, inputs.split(), [output], **attributes)


def _make_weight(name: str, *shape: int) -> Any:
    size = 4
    for one in shape:
        size *= one
    return helper.make_tensor(name, TensorProto.FLOAT, shape, bytes(size), raw=True)
