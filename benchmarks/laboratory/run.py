"""Estimators on measurements of an H200 that were made before this package was.

The file of measurements is not part of the project; its path is an argument. It holds isolated
layers and blocks, time probes, the paper's variants and whole random nets of three families. Every
method learns from some of its rows and is judged by the joules of an eager step of the whole nets,
of which it has seen nothing.

    python benchmarks/laboratory/run.py --data FILE               a table
    python benchmarks/laboratory/run.py --data FILE --out JSON    also keep it
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from joulecast.estimators import find_estimator
from joulecast.estimators.base import Prediction
from joulecast.gp.lognormal import lognormal_interval
from joulecast.kinds import make_layer, make_op, output_shape
from joulecast.records import Execution, Input, Layer, Network, Observation, Setup, Trial
from joulecast.testing.commits import find_commit

Json = dict[str, Any]

SETUPS = {
    "B": Setup(batch=128, precision="tf32"),
    "R": Setup(batch=128, precision="bf16"),
    "A": Setup(batch=10, precision="tf32"),
}
# What the study that made these measurements found on the same nets, with its own code (MAPE %).
STUDY = {
    "additive with probes": {"B": 1.7, "R": 2.3},
    "additive": {"B": 3.4, "R": 3.5},
    "additive on variants": {"B": 3.9, "R": 4.0},
    "subtractive": {"B": 11.6, "R": 27.6},
    "flops from other nets": {"B": 34.0, "R": 51.0},
}
VARIANTS = ("in", "in2", "hid", "out")
PROBES = ("tp", "tpiso")
# An earlier meter, which read about 1 % low.
POOR_RUN = 3

RELU = make_op("elementwise", fn="relu")
NORM = make_op("batch_norm")
# Of family A's 7 positions it leaves 4.
HALVE = make_op("pool", fn="max", kernel=(2, 2), stride=(2, 2), padding=(0, 0), ceil=1)
STEM_POOL = make_op("pool", fn="max", kernel=(3, 3), stride=(2, 2), padding=(1, 1))
CLASSES = 10


# ---------------------------------------------------------------------------------------------
# Rows of the file as observations


def make_layers(words: Sequence[Any]) -> list[Layer]:
    """The layers that one entry of a row's ``layers`` means."""
    kind, *sizes = words
    return _MAKERS[kind](*sizes)


def _make_conv(cin: int, cout: int, size: int, pool: int) -> list[Layer]:
    tail = (RELU, HALVE) if pool else (RELU,)
    return [make_layer("conv2d", tail, cin=cin, cout=cout, space=(size, size), kernel=3, padding=1)]


def _make_flat_head(channels: int, size: int) -> list[Layer]:
    """The flatten is a layer of its own, so that the convolution before it is like any other."""
    flat = make_layer("flatten", shape=(channels, size, size))
    return [flat, make_layer("linear", cin=channels * size * size, cout=CLASSES)]


def _make_stem(width: int, size: int) -> list[Layer]:
    tail = (NORM, RELU, STEM_POOL)
    sizes: Json = {"kernel": 7, "stride": 2, "padding": 3, "bias": 0}
    return [make_layer("conv2d", tail, cin=3, cout=width, space=(size, size), **sizes)]


def _make_block(cin: int, cout: int, stride: int, size: int) -> list[Layer]:
    """Two convolutions with norms, a projection where the shape changes, the sum, a ReLU."""
    thick: Json = {"cout": cout, "kernel": 3, "padding": 1, "bias": 0}
    one = make_layer("conv2d", (NORM, RELU), cin=cin, space=(size, size), stride=stride, **thick)
    space = output_shape(one)[1:]
    layers = [one, make_layer("conv2d", (NORM,), cin=cout, space=space, **thick)]
    reads = (1, 3)
    if stride != 1 or cin != cout:
        thin: Json = {"cout": cout, "kernel": 1, "stride": stride, "bias": 0}
        project = make_layer("conv2d", (NORM,), cin=cin, space=(size, size), **thin)
        layers.append(replace(project, reads=(3,)))
        reads = (2, 1)
    plus = make_layer("elementwise", (RELU,), fn="add", inputs=2, shape=(cout, *space))
    return [*layers, replace(plus, reads=reads, join="add")]


def _make_mean_head(channels: int, size: int) -> list[Layer]:
    shape, flat = (channels, size, size), (make_op("flatten"),)
    mean = make_layer("pool", flat, fn="adaptive_avg", kernel=(1, 1), shape=shape)
    return [mean, make_layer("linear", cin=channels, cout=CLASSES)]


_MAKERS: dict[str, Callable[..., list[Layer]]] = {
    "cin": _make_conv,
    "chid": _make_conv,
    "cfc": _make_flat_head,
    "stem": _make_stem,
    "basic": _make_block,
    "rhead": _make_mean_head,
}
_FIRSTS, _LASTS = ("cin", "stem"), ("cfc", "rhead")


def make_network(row: Json) -> Network:
    """The net, the variant or the isolated piece that a row shows."""
    layers: list[Layer] = []
    groups: list[tuple[int, int]] = []
    for words in row["layers"]:
        new = make_layers(words)
        if not layers and new[0].kind == "flatten":
            new = new[1:]
        if words[0] == "basic" and not is_alone(row):
            groups.append((len(layers), len(layers) + len(new)))
        layers += new
    first, *sizes = row["layers"][0]
    if first in _FIRSTS:
        layers[0] = replace(layers[0], input_grad=False)
    half = is_alone(row) and first in ("basic", "rhead") and SETUPS[row["fam"]].precision == "bf16"
    name = " ".join("-".join(map(str, words)) for words in row["layers"])
    data = Input(_find_shape(first, sizes), half=half)
    return Network(tuple(layers), data, tuple(groups), name=name)


def _find_shape(kind: str, sizes: Sequence[int]) -> tuple[int, ...]:
    if kind == "cfc":
        return (sizes[0] * sizes[1] ** 2,)
    channels = 3 if kind == "stem" else sizes[0]
    size = sizes[2] if kind in ("cin", "chid") else sizes[-1]
    return (channels, size, size)


def is_alone(row: Json) -> bool:
    """Whether a row shows one piece alone, in copies."""
    return "k" in row


def read_idle(row: Json) -> Observation:
    """The waiting device, over one second."""
    return Observation(Trial(Network(), Setup()), energy_j=row["iP"], duration_s=1.0)


def read_graph(row: Json) -> Observation:
    """A step replayed as one graph; a time probe has no joules."""
    ends = not is_alone(row) or row["layers"][-1][0] in _LASTS
    how = Execution(mode="graph", copies=row.get("k", 1), upstream="loss" if ends else "random")
    trial = Trial(make_network(row), SETUPS[row["fam"]], how)
    return Observation(trial, energy_j=row.get("gj"), duration_s=row["gs"], run=str(row["run"]))


def read_eager(row: Json, energy: bool) -> Observation:
    """A step as a user runs it."""
    trial = Trial(make_network(row), SETUPS[row["fam"]])
    return Observation(
        trial,
        energy_j=row["ej"] if energy else None,
        duration_s=row["es"],
        issue_s=row["issmin"],
        run=str(row["run"]),
    )


def read_issue(row: Json) -> Observation:
    """Host time of an isolated piece; how long its eager step took, nobody wrote down."""
    seen = read_graph(row)
    how = replace(seen.trial.execution, mode="eager")
    least_s = max(row["issmin"], row["gs"])
    trial = replace(seen.trial, execution=how)
    return replace(seen, trial=trial, energy_j=None, duration_s=least_s, issue_s=row["issmin"])


# ---------------------------------------------------------------------------------------------
# What each method learns from


def pick(rows: Sequence[Json], family: str, tags: Sequence[str]) -> list[Json]:
    """Rows of a family by their tags, the earlier meter's left out."""
    found = [row for row in rows if row["fam"] == family and row["tag"] in tags]
    return [row for row in found if row["run"] != POOR_RUN]


def list_idle(rows: Sequence[Json]) -> list[Observation]:
    """The waiting device."""
    return [read_idle(row) for row in rows if row["type"] == "idle"]


def list_host(rows: Sequence[Json], family: str) -> list[Observation]:
    """Seconds of eager variants, never their joules."""
    variants = pick(rows, family, VARIANTS)
    if variants:
        return [read_eager(row, energy=False) for row in variants]
    # Family A has no variants of the better meter: what is known of its host are issue times.
    return [read_issue(row) for row in pick(rows, family, ("iso",))]


@dataclass(frozen=True)
class Method:
    """An estimator and what it learns from.

    Attributes:
        tags: Rows of the family that it learns from; without all of them it is left out.
        timed: So many whole nets lend their seconds for the host, and are then not judged.
    """

    estimator: str
    tags: tuple[str, ...]
    timed: int = 0

    def list_seen(self, rows: Sequence[Json], family: str) -> list[Observation]:
        """Everything that it learns from, those nets excepted."""
        found = pick(rows, family, self.tags)
        if self.tags == VARIANTS:
            return [*list_idle(rows), *(read_eager(row, energy=True) for row in found)]
        return [*map(read_graph, found), *list_idle(rows), *list_host(rows, family)]


METHODS = {
    "additive with probes": Method("additive", ("iso", *PROBES)),
    "additive": Method("additive", ("iso",)),
    "additive with probes, more energies": Method("additive", ("iso", "iso2", *PROBES)),
    "additive, more energies": Method("additive", ("iso", "iso2")),
    "additive, two nets timed": Method("additive", ("iso",), timed=2),
    "additive on variants": Method("additive", VARIANTS),
    "subtractive": Method("subtractive", VARIANTS),
    "flops from variants": Method("flops", VARIANTS),
}


def why_not(name: str, rows: Sequence[Json], family: str) -> str:
    """Why a method cannot be tried on a family; empty where it can."""
    method = METHODS[name]
    have = {row["tag"] for row in pick(rows, family, method.tags)}
    missing = [tag for tag in method.tags if tag not in have]
    if method.tags == VARIANTS and have:
        missing = []
    if missing:
        return f"{family} has no rows of {', '.join(missing)}"
    if method.estimator == "subtractive" and family == "R":
        return "its variants hold whole blocks, and none shows the output alone"
    if method.timed and pick(rows, family, VARIANTS):
        return "its variants show the host"
    return ""


# ---------------------------------------------------------------------------------------------
# Running


def main() -> None:
    """Judge every method on every family, then print and keep what was found."""
    args = parse_arguments()
    text = args.data.read_bytes()
    rows = json.loads(text)["rows"]
    report = {
        "measured": True,
        "device": "NVIDIA H200; its driver was not recorded",
        "data_sha256": hashlib.sha256(text).hexdigest(),
        "date": datetime.now(UTC).date().isoformat(),
        "commit": find_commit(__file__),
        "families": {family: judge_family(rows, family) for family in SETUPS},
    }
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(format_json(report))
    print(make_table(report))


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data", type=Path, required=True, help="the file of measurements")
    parser.add_argument("--out", type=Path, help="also write JSON to this file")
    return parser.parse_args()


def judge_family(rows: Sequence[Json], family: str) -> Json:
    """Every method on the whole nets of a family."""
    nets: dict[Network, list[Json]] = {}
    for row in pick(rows, family, ("full",)):
        nets.setdefault(make_network(row), []).append(row)
    truths = {net: average(repeats) for net, repeats in nets.items()}
    reasons = {name: why_not(name, rows, family) for name in METHODS}
    methods = {name: judge(name, rows, family, truths) for name, why in reasons.items() if not why}
    return {
        "nets": len(nets),
        "measurements": sum(map(len, nets.values())),
        "methods": {**methods, "flops from other nets": judge_flops(family, truths)},
        "left_out": {name: why for name, why in reasons.items() if why},
    }


def average(repeats: Sequence[Json]) -> Json:
    """What a net took, its repeats averaged; graphs were not measured everywhere."""
    truth: Json = {"rows": len(repeats)}
    for name in ("ej", "es", "gj", "gs"):
        if all(name in row for row in repeats):
            truth[name] = statistics.fmean(row[name] for row in repeats)
    return truth


def judge(name: str, rows: Sequence[Json], family: str, truths: dict[Network, Json]) -> Json:
    """Learn, estimate the nets, compare."""
    method = METHODS[name]
    estimator = find_estimator(method.estimator)
    seen = method.list_seen(rows, family)
    timed, nets = list(truths)[: method.timed], list(truths)[method.timed :]
    for row in pick(rows, family, ("full",)):
        if make_network(row) in timed:
            seen.append(read_eager(row, energy=False))
    fitted = estimator.fit(seen)
    answer = fitted.predict(nets, [SETUPS[family]] * len(nets))
    data = fitted.to_dict()
    idle_w = data["idle_w"] if data.get("form") == "graph" else None
    compared = [compare(answer, at, truths[net], idle_w) for at, net in enumerate(nets)]
    found = {"learnt_from": dict(Counter(map(describe, seen))), **sum_up(compared)}
    found["study_mape_percent"] = STUDY.get(name, {}).get(family)
    found["variance_percent"] = share_doubts(answer)
    by_net = [{"net": net.name, **row} for net, row in zip(nets, compared, strict=True)]
    return {**found, "by_net": by_net}


def judge_flops(family: str, truths: dict[Network, Json]) -> Json:
    """FLOPs-proportional with the factor of all the other whole nets: more than others are told."""
    estimator = find_estimator("flops")
    seen = [
        Observation(Trial(net, SETUPS[family]), energy_j=truth["ej"], duration_s=truth["es"])
        for net, truth in truths.items()
    ]
    compared = []
    for at, (net, truth) in enumerate(truths.items()):
        fitted = estimator.fit(seen[:at] + seen[at + 1 :])
        answer = fitted.predict([net], [SETUPS[family]])
        compared.append({"net": net.name, **compare(answer, 0, truth)})
    return {
        "learnt_from": {"whole nets, all but the one": len(seen) - 1},
        **sum_up(compared),
        "study_mape_percent": STUDY["flops from other nets"].get(family),
        "by_net": compared,
    }


def share_doubts(answer: Prediction) -> Json:
    """Where the variance comes from, on average over the nets, in percent."""
    words = sorted({word for net in answer.uncertainty_sources for word in net})
    return {
        word: round(100 * statistics.fmean(net[word] for net in answer.uncertainty_sources), 1)
        for word in words
    }


def describe(seen: Observation) -> str:
    """In words what an observation is, to be counted."""
    trial = seen.trial
    if not trial.network.layers:
        return "waiting device"
    what = "seconds" if seen.energy_j is None else "joules and seconds"
    where = "alone" if trial.execution.copies > 1 else "net or variant"
    return f"{trial.execution.mode}, {where}, {what}"


def compare(answer: Prediction, at: int, truth: Json, idle_w: float | None = None) -> Json:
    """An estimate beside what was measured, per step."""
    mean_j, sd_j = float(answer.energy_j[at]), float(answer.energy_sd_j[at])
    row: Json = {**truth, "estimate_j": mean_j, "estimate_s": float(answer.duration_s[at])}
    for level in (50, 95):
        row[f"interval{level}_j"] = list(lognormal_interval(mean_j, sd_j**2, level / 100))
    if answer.device_energy_j is not None and idle_w is not None and "gs" in truth:
        # E = G + P0·(T - D), solved for the device's own seconds D.
        row["device_j"] = float(answer.device_energy_j[at])
        row["device_s"] = row["estimate_s"] - (mean_j - row["device_j"]) / idle_w
    return {key: _round(value) for key, value in row.items()}


def _round(value: Any) -> Any:
    """Six digits are plenty, and make a smaller file."""
    if isinstance(value, list):
        return [_round(one) for one in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


# ---------------------------------------------------------------------------------------------
# Reporting

PAIRS = {
    "energy": ("estimate_j", "ej"),
    "time": ("estimate_s", "es"),
    "device_energy": ("device_j", "gj"),
    "device_time": ("device_s", "gs"),
}


def sum_up(rows: Sequence[Json]) -> Json:
    """Errors of joules and seconds in percent, and how intervals hold."""
    found: Json = {}
    for what, (guess, truth) in PAIRS.items():
        errors = [100 * (row[guess] / row[truth] - 1) for row in rows if guess in row]
        if errors:
            found[what] = {
                "mape_percent": statistics.fmean(map(abs, errors)),
                "bias_percent": statistics.fmean(errors),
                "max_percent": max(map(abs, errors)),
            }
    for level in (50, 95):
        ends = [(row[f"interval{level}_j"], row["ej"]) for row in rows]
        held = [low <= truth <= high for (low, high), truth in ends]
        found[f"coverage{level}_percent"] = 100 * statistics.fmean(held)
    widths = [(row["interval95_j"][1] - row["interval95_j"][0]) / row["estimate_j"] for row in rows]
    found["width95_percent"] = 100 * statistics.median(widths)
    return found


def format_json(report: Json) -> str:
    """JSON with a line for each net."""
    text = json.dumps(report, indent=1)
    return re.sub(r"\{[^{}]*\}", lambda found: " ".join(found.group().split()), text) + "\n"


def make_table(report: Json) -> str:
    """Everything at a glance."""
    lines = []
    for family, found in report["families"].items():
        lines.append(
            f"family {family}: {found['nets']} nets in {found['measurements']} measurements; %"
        )
        heads = ("MAPE", "study", "bias", "max", "in 50", "in 95", "width", "G", "D", "T")
        lines.append(f"{'':36s}" + "".join(f"{head:>8s}" for head in heads))
        for name, method in found["methods"].items():
            lines.append(f"{name:36s}" + "".join(map(_cell, _list_numbers(method))))
        lines += [f"{name:36s} - {why}" for name, why in found["left_out"].items()]
    lines.append("G, D: MAPE of the device's own joules and seconds; T: of seconds of a step")
    return "\n".join(lines)


def _list_numbers(method: Json) -> list[float | None]:
    energy = method["energy"]
    others = ("device_energy", "device_time", "time")
    return [
        energy["mape_percent"],
        method.get("study_mape_percent"),
        energy["bias_percent"],
        energy["max_percent"],
        method["coverage50_percent"],
        method["coverage95_percent"],
        method["width95_percent"],
        *(method[what]["mape_percent"] if what in method else None for what in others),
    ]


def _cell(number: float | None) -> str:
    return f"{'-':>8s}" if number is None else f"{number:8.1f}"


if __name__ == "__main__":
    main()
