"""Score estimators on earlier measurements of an H200, made with other code.

The file of measurements is not part of the project; its path is an argument. It contains isolated
layers and blocks, time probes, the paper's variants and whole random nets of three families. Every
method is fitted to some of its rows and scored on the energy of eager steps of the whole nets,
which are held out.

    python benchmarks/laboratory/run.py --data FILE               a table
    python benchmarks/laboratory/run.py --data FILE --out JSON    also write it
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
# MAPE in percent that the study behind these measurements found on the same nets with its own code.
STUDY = {
    "additive with probes": {"B": 1.7, "R": 2.3},
    "additive": {"B": 3.4, "R": 3.5},
    "additive on variants": {"B": 3.9, "R": 4.0},
    "subtractive": {"B": 11.6, "R": 27.6},
    "flops from other nets": {"B": 34.0, "R": 51.0},
}
BASELINES = ("work-linear", "flops-linear", "flops", "constant")
VARIANTS = ("in", "in2", "hid", "out")
PROBES = ("tp", "tpiso")
# An earlier meter, which read about 1 % low.
EARLIER_METER_RUN = 3

RELU = make_op("elementwise", fn="relu")
NORM = make_op("batch_norm")
# With ceil, 7 positions of family A become 4.
HALVE = make_op("pool", fn="max", kernel=(2, 2), stride=(2, 2), padding=(0, 0), ceil=1)
STEM_POOL = make_op("pool", fn="max", kernel=(3, 3), stride=(2, 2), padding=(1, 1))
CLASSES = 10


# ---------------------------------------------------------------------------------------------
# Rows of the file as observations


def make_layers(entry: Sequence[Any]) -> list[Layer]:
    """Return the layers of one entry of a row's ``layers``."""
    kind, *sizes = entry
    return _MAKERS[kind](*sizes)


def _make_conv(cin: int, cout: int, size: int, pool: int) -> list[Layer]:
    tail = (RELU, HALVE) if pool else (RELU,)
    return [make_layer("conv2d", tail, cin=cin, cout=cout, space=(size, size), kernel=3, padding=1)]


def _make_flat_head(channels: int, size: int) -> list[Layer]:
    """Return flatten and linear; flatten is separate, so that convolutions are all alike."""
    flat = make_layer("flatten", shape=(channels, size, size))
    return [flat, make_layer("linear", cin=channels * size * size, cout=CLASSES)]


def _make_stem(width: int, size: int) -> list[Layer]:
    tail = (NORM, RELU, STEM_POOL)
    sizes: Json = {"kernel": 7, "stride": 2, "padding": 3, "bias": 0}
    return [make_layer("conv2d", tail, cin=3, cout=width, space=(size, size), **sizes)]


def _make_block(cin: int, cout: int, stride: int, size: int) -> list[Layer]:
    """Return a residual block, with a projection if the shape changes."""
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
    """Return the network, variant or isolated piece of a row."""
    layers: list[Layer] = []
    groups: list[tuple[int, int]] = []
    for entry in row["layers"]:
        new = make_layers(entry)
        if not layers and new[0].kind == "flatten":
            new = new[1:]
        if entry[0] == "basic" and not is_isolated(row):
            groups.append((len(layers), len(layers) + len(new)))
        layers += new
    first, *sizes = row["layers"][0]
    if first in _FIRSTS:
        layers[0] = replace(layers[0], input_grad=False)
    half = (
        is_isolated(row) and first in ("basic", "rhead") and SETUPS[row["fam"]].precision == "bf16"
    )
    name = " ".join("-".join(map(str, entry)) for entry in row["layers"])
    data = Input(_find_shape(first, sizes), half=half)
    return Network(tuple(layers), data, tuple(groups), name=name)


def _find_shape(kind: str, sizes: Sequence[int]) -> tuple[int, ...]:
    if kind == "cfc":
        return (sizes[0] * sizes[1] ** 2,)
    channels = 3 if kind == "stem" else sizes[0]
    size = sizes[2] if kind in ("cin", "chid") else sizes[-1]
    return (channels, size, size)


def is_isolated(row: Json) -> bool:
    """Return whether a row is of copies of one isolated piece."""
    return "k" in row


def read_idle(row: Json) -> Observation:
    """Return the idle device over one second."""
    return Observation(Trial(Network(), Setup()), energy_j=row["iP"], duration_s=1.0)


def read_graph(row: Json) -> Observation:
    """Return a step replayed as one CUDA graph; a time probe has no energy."""
    ends = not is_isolated(row) or row["layers"][-1][0] in _LASTS
    how = Execution(mode="graph", copies=row.get("k", 1), upstream="loss" if ends else "random")
    trial = Trial(make_network(row), SETUPS[row["fam"]], how)
    return Observation(trial, energy_j=row.get("gj"), duration_s=row["gs"], run=str(row["run"]))


def read_eager(row: Json, energy: bool) -> Observation:
    """Return an eager step."""
    trial = Trial(make_network(row), SETUPS[row["fam"]])
    return Observation(
        trial,
        energy_j=row["ej"] if energy else None,
        duration_s=row["es"],
        issue_s=row["issmin"],
        run=str(row["run"]),
    )


def read_issue(row: Json) -> Observation:
    """Return the issue time of an isolated piece; the duration of its eager step is unknown."""
    observation = read_graph(row)
    how = replace(observation.trial.execution, mode="eager")
    least_s = max(row["issmin"], row["gs"])
    trial = replace(observation.trial, execution=how)
    return replace(
        observation, trial=trial, energy_j=None, duration_s=least_s, issue_s=row["issmin"]
    )


# ---------------------------------------------------------------------------------------------
# Methods


def select_rows(rows: Sequence[Json], family: str, tags: Sequence[str]) -> list[Json]:
    """Return rows of a family by their tags, without those of the earlier meter."""
    found = [row for row in rows if row["fam"] == family and row["tag"] in tags]
    return [row for row in found if row["run"] != EARLIER_METER_RUN]


def list_idle(rows: Sequence[Json]) -> list[Observation]:
    """Return observations of the idle device."""
    return [read_idle(row) for row in rows if row["type"] == "idle"]


def list_host(rows: Sequence[Json], family: str) -> list[Observation]:
    """Return durations of eager variants, without their energy."""
    variants = select_rows(rows, family, VARIANTS)
    if variants:
        return [read_eager(row, energy=False) for row in variants]
    # Family A has no variants of the better meter, only issue times.
    return [read_issue(row) for row in select_rows(rows, family, ("iso",))]


@dataclass(frozen=True)
class Method:
    """An estimator and the rows that it is fitted to.

    Attributes:
        tags: Tags of these rows; a family without one of them is left out.
        timed: Number of whole nets whose duration it is fitted to, which are then not scored.
    """

    estimator: str
    tags: tuple[str, ...]
    timed: int = 0

    def list_observations(self, rows: Sequence[Json], family: str) -> list[Observation]:
        """Return the observations that it is fitted to, without whole nets."""
        found = select_rows(rows, family, self.tags)
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


def find_reason_to_skip(name: str, rows: Sequence[Json], family: str) -> str:
    """Return why a method does not apply to a family, or an empty string."""
    method = METHODS[name]
    present = {row["tag"] for row in select_rows(rows, family, method.tags)}
    missing = [tag for tag in method.tags if tag not in present]
    if method.tags == VARIANTS and present:
        missing = []
    if missing:
        return f"{family} has no rows of {', '.join(missing)}"
    if method.estimator == "subtractive" and family == "R":
        return "its variants contain whole blocks, and none isolates the output"
    if method.timed and select_rows(rows, family, VARIANTS):
        return "its variants already show host time"
    return ""


# ---------------------------------------------------------------------------------------------
# Running


def main() -> None:
    """Score every method on every family, then print and write the results."""
    args = parse_arguments()
    text = args.data.read_bytes()
    rows = json.loads(text)["rows"]
    report = {
        "measured": True,
        "device": "NVIDIA H200; its driver was not recorded",
        "data_sha256": hashlib.sha256(text).hexdigest(),
        "date": datetime.now(UTC).date().isoformat(),
        "commit": find_commit(__file__),
        "families": {family: score_family(rows, family) for family in SETUPS},
    }
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(format_json(report))
    print(make_table(report))


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data", type=Path, required=True, help="file of measurements")
    parser.add_argument("--out", type=Path, help="also write JSON to this file")
    return parser.parse_args()


def score_family(rows: Sequence[Json], family: str) -> Json:
    """Score every method on the whole nets of a family."""
    nets: dict[Network, list[Json]] = {}
    for row in select_rows(rows, family, ("full",)):
        nets.setdefault(make_network(row), []).append(row)
    measured_nets = {net: average(repeats) for net, repeats in nets.items()}
    reasons = {name: find_reason_to_skip(name, rows, family) for name in METHODS}
    methods = {
        name: score_method(name, rows, family, measured_nets)
        for name, reason in reasons.items()
        if not reason
    }
    return {
        "nets": len(nets),
        "measurements": sum(map(len, nets.values())),
        "methods": {
            **methods,
            **{
                f"{name} from other nets": score_baseline(name, family, measured_nets)
                for name in BASELINES
            },
        },
        "left_out": {name: reason for name, reason in reasons.items() if reason},
    }


def average(repeats: Sequence[Json]) -> Json:
    """Return the mean over the repeats of a net; not all were measured as graphs."""
    measured: Json = {"rows": len(repeats)}
    for name in ("ej", "es", "gj", "gs"):
        if all(name in row for row in repeats):
            measured[name] = statistics.fmean(row[name] for row in repeats)
    return measured


def score_method(
    name: str, rows: Sequence[Json], family: str, measured_nets: dict[Network, Json]
) -> Json:
    """Fit a method, predict the nets and compare."""
    method = METHODS[name]
    estimator = find_estimator(method.estimator)
    observations = method.list_observations(rows, family)
    timed, nets = list(measured_nets)[: method.timed], list(measured_nets)[method.timed :]
    for row in select_rows(rows, family, ("full",)):
        if make_network(row) in timed:
            observations.append(read_eager(row, energy=False))
    fitted = estimator.fit(observations)
    prediction = fitted.predict(nets, [SETUPS[family]] * len(nets))
    data = fitted.to_dict()
    idle_w = data["idle_w"] if data.get("form") == "graph" else None
    compared = [compare(prediction, at, measured_nets[net], idle_w) for at, net in enumerate(nets)]
    found = {"learnt_from": dict(Counter(map(describe, observations))), **summarise(compared)}
    found["study_mape_percent"] = STUDY.get(name, {}).get(family)
    found["variance_percent"] = average_sources(prediction)
    by_net = [{"net": net.name, **row} for net, row in zip(nets, compared, strict=True)]
    return {**found, "by_net": by_net}


def score_baseline(name: str, family: str, measured_nets: dict[Network, Json]) -> Json:
    """Score a baseline that is fitted to all other whole nets."""
    estimator = find_estimator(name)
    observations = [
        Observation(Trial(net, SETUPS[family]), energy_j=measured["ej"], duration_s=measured["es"])
        for net, measured in measured_nets.items()
    ]
    compared = []
    for at, (net, measured) in enumerate(measured_nets.items()):
        fitted = estimator.fit(observations[:at] + observations[at + 1 :])
        prediction = fitted.predict([net], [SETUPS[family]])
        compared.append({"net": net.name, **compare(prediction, 0, measured)})
    return {
        "learnt_from": {"whole nets, all but the one": len(observations) - 1},
        **summarise(compared),
        "study_mape_percent": STUDY.get(f"{name} from other nets", {}).get(family),
        "by_net": compared,
    }


def average_sources(prediction: Prediction) -> Json:
    """Return the mean share of each source of variance in percent."""
    sources = sorted({source for net in prediction.uncertainty_sources for source in net})
    return {
        source: round(
            100 * statistics.fmean(net[source] for net in prediction.uncertainty_sources), 1
        )
        for source in sources
    }


def describe(observation: Observation) -> str:
    """Describe an observation, for counting."""
    trial = observation.trial
    if not trial.network.layers:
        return "idle device"
    what = "time" if observation.energy_j is None else "energy and time"
    where = "isolated" if trial.execution.copies > 1 else "net or variant"
    return f"{trial.execution.mode}, {where}, {what}"


def compare(prediction: Prediction, at: int, measured: Json, idle_w: float | None = None) -> Json:
    """Return an estimate with the measurement, per step."""
    mean_j, sd_j = float(prediction.energy_j[at]), float(prediction.energy_sd_j[at])
    row: Json = {**measured, "estimate_j": mean_j, "estimate_s": float(prediction.duration_s[at])}
    for level in (50, 95):
        row[f"interval{level}_j"] = list(lognormal_interval(mean_j, sd_j**2, level / 100))
    if prediction.device_energy_j is not None and idle_w is not None and "gs" in measured:
        # E = G + P0·(T - D), solved for the device time D.
        row["device_j"] = float(prediction.device_energy_j[at])
        row["device_s"] = row["estimate_s"] - (mean_j - row["device_j"]) / idle_w
    return {key: _round(value) for key, value in row.items()}


def _round(value: Any) -> Any:
    """Round to six digits, for a smaller file."""
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


def summarise(rows: Sequence[Json]) -> Json:
    """Return errors of energy and time in percent, and the coverage of the intervals."""
    found: Json = {}
    for what, (estimated, measured) in PAIRS.items():
        errors = [100 * (row[estimated] / row[measured] - 1) for row in rows if estimated in row]
        if errors:
            found[what] = {
                "mape_percent": statistics.fmean(map(abs, errors)),
                "bias_percent": statistics.fmean(errors),
                "max_percent": max(map(abs, errors)),
            }
    for level in (50, 95):
        ends = [(row[f"interval{level}_j"], row["ej"]) for row in rows]
        inside = [low <= measured <= high for (low, high), measured in ends]
        found[f"coverage{level}_percent"] = 100 * statistics.fmean(inside)
    widths = [(row["interval95_j"][1] - row["interval95_j"][0]) / row["estimate_j"] for row in rows]
    found["width95_percent"] = 100 * statistics.median(widths)
    return found


def format_json(report: Json) -> str:
    """Return JSON with one line for each net."""
    text = json.dumps(report, indent=1)
    return re.sub(r"\{[^{}]*\}", lambda found: " ".join(found.group().split()), text) + "\n"


def make_table(report: Json) -> str:
    """Return the results as a table."""
    lines = []
    for family, found in report["families"].items():
        lines.append(
            f"family {family}: {found['nets']} nets in {found['measurements']} measurements; %"
        )
        heads = ("MAPE", "study", "bias", "max", "cov. 50", "cov. 95", "width", "G", "D", "T")
        lines.append(f"{'':36s}" + "".join(f"{head:>8s}" for head in heads))
        for name, method in found["methods"].items():
            lines.append(f"{name:36s}" + "".join(map(_cell, _list_numbers(method))))
        lines += [f"{name:36s} - {reason}" for name, reason in found["left_out"].items()]
    lines.append("G, D: MAPE of device energy and device time; T: MAPE of the duration of a step")
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
