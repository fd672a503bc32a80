"""The estimate of a run, and what people see of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Annotated

from joulecast.features.arguments import Argument
from joulecast.features.run import EVALUATION, WAITING, RunCost, RunPart, average_step, list_totals
from joulecast.records import (
    BlockEstimate,
    DataParallel,
    Estimate,
    Json,
    LayerEstimate,
    Network,
    Profile,
    Setup,
    describe_inference,
    name_step,
    summarise_observations,
)
from joulecast.runtimes import find_installed_runtime
from joulecast.system.units import (
    JOULES_PER_WH,
    battery_share,
    format_bytes,
    format_duration,
    format_energy,
    format_interval,
    format_kwh,
    format_mass,
    format_money,
    format_power,
    format_share,
    format_wh,
    parse_energy,
)
from joulecast.views.report import Block, Report, Reportable, Table, Text, make_table
from joulecast.views.words import (
    begin_sentence,
    describe_coverage,
    describe_provenance,
    describe_setup,
    explain_not_included,
    format_level,
    format_with_interval,
    is_inference,
    make_bar,
    plural,
    shorten_path,
)

if TYPE_CHECKING:
    from joulecast.estimators.forecast import BatteryForecast

EveryLayer = Annotated[bool, Argument("Print every layer, in call order.")]

# Shares above which a note is worth printing.
_MIN_HOST_SHARE = 0.05
_MIN_SOURCE_SHARE = 0.05
# Half an interval, as a share of the energy, that is worth a probe.
_MIN_HALF_SHARE = 0.1
_NEARLY_CERTAIN = 0.999
_MAX_SETUPS = 3
# Answers by the smallest probability they stand for.
_FINISHES = {
    f"Almost certainly (above {format_share(_NEARLY_CERTAIN)})": _NEARLY_CERTAIN,
    "Yes, with {share}": 0.975,
    "Probably, with {share}": 0.5,
    "Probably not, with {share}": 0.025,
    "No, with {share}": 1 - _NEARLY_CERTAIN,
    f"Almost certainly not (below {100 * (1 - _NEARLY_CERTAIN):.1f} %)": 0.0,
}


@dataclass(frozen=True)
class RunEstimate(Reportable):
    """What a run, or a sweep of equal runs, is estimated to cost, in every unit asked for."""

    network: Network
    setup: Setup
    step: Estimate
    run: RunCost  # what all runs cost, with their parts
    profile: Profile | None = None  # what the estimate rests on, if at hand
    is_plain: bool = True  # whether it is one run of steps alone
    grid: str | None = None
    price: str | None = None
    battery: str | None = None
    charge_share: float = 1.0
    reserve_share: float = 0.0
    rest_w: float = 0.0
    warnings: tuple[str, ...] = ()
    totals: Json = field(init=False)
    finish: BatteryForecast | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        cost, units = self.run, (self.grid, self.price)
        totals = list_totals(1, cost.energy_j, cost.interval_j, cost.duration_s, *units)
        object.__setattr__(self, "totals", totals)
        if self.battery is not None:
            # Imports NumPy.
            from joulecast.estimators.forecast import will_finish

            step, battery_j = average_step(self.step, cost), parse_energy(self.battery)
            shares = (self.charge_share, self.reserve_share)
            finish = will_finish(step, self._step_count, battery_j, *shares, self.rest_w)
            object.__setattr__(self, "finish", finish)

    @property
    def _step_count(self) -> int:
        return self.run.schedule.steps * self.run.schedule.runs

    @property
    def energy_j(self) -> float:
        return self.run.energy_j

    @property
    def interval_j(self) -> tuple[float, float]:
        return self.run.interval_j

    @property
    def duration_s(self) -> float:
        """Duration of all runs, one after another."""
        return self.run.duration_s

    def to_dict(self) -> Json:
        step, schedule = self.step, self.run.schedule
        data: Json = {
            **step.to_dict(),
            "fits_memory": step.fits_memory,
            "installed_runtime": find_installed_runtime(step.runtime) or None,
            "steps": schedule.steps,
            "runs": schedule.runs,
            **self.totals,
        }
        if not self.is_plain:
            data["run"] = self.run.to_dict()
        if self.finish is not None:
            data |= {"battery_share": self._battery_share, "finish": self.finish.to_dict()}
        # What no layer accounts for is in no estimate of layers.
        for name in (f"unattributed_{what}_share" for what in ("flops", "bytes", "params")):
            data[name] = getattr(self.network.totals, name, 0.0)
        return data | describe_inference(self.setup, step.energy_j, step.duration_s)

    def report(self, *, layers: EveryLayer = False) -> Report:
        step, setup = self.step, self.setup
        leads = [_describe_step(setup, step), *list_run_lines(self.run, setup, step.gpus)]
        blocks: list[Block] = [Text(line, "lead") for line in leads]
        if step.data_parallel is not None:
            blocks.append(Text(_describe_scaling(step, step.data_parallel)))
        blocks.append(Text(" · ".join(self._list_units())))
        if self.finish is not None:
            blocks.append(Text(self._answer_finish(self.finish), "lead"))
        verb_ = "Running" if is_inference(setup) else "Training"
        title = f"{verb_} {self.network.name} on {_name_place(step)}: "
        title += describe_setup(setup, step.gpus)
        return _report(title, step, blocks, self._list_notes(), self.warnings, layers)

    @property
    def _battery_share(self) -> float:
        return battery_share(self.totals["total_energy_j"], parse_energy(self.battery or ""))

    def _list_units(self) -> list[str]:
        totals, units = self.totals, []
        costs = describe_inference(self.setup, self.step.energy_j, self.step.duration_s)
        if costs:
            units.append(f"{format_power(costs['mean_power_w'])} on average")
            wh = costs["wh_per_1000_inferences"]
            units.append(f"{format_wh(wh * JOULES_PER_WH)} per 1,000 inferences")
        if not units or self._step_count > 1:
            units.append(format_kwh(totals["total_energy_j"]))
        if "co2e_g" in totals:
            units.append(f"about {format_mass(totals['co2e_g'])} CO2e (grid {self.grid})")
        if "cost" in totals:
            units.append(format_money(totals["cost"], totals["currency"]))
        if self.battery is not None:
            units.append(f"{format_share(self._battery_share)} of a {self.battery} battery")
        return units

    def _answer_finish(self, finish: BatteryForecast) -> str:
        """Return whether the run finishes on the charge, with its probability."""
        available, noun = format_energy(finish.available_j), name_step(self.setup)
        enough = f"enough for about {plural(finish.steps_left, noun)}"
        caveat = "" if self.rest_w else (
            f" The meter covers {self.step.covers}: give the power of everything else on the "
            "battery too."
        )  # fmt: skip
        if self._step_count == 1:
            hint = f"Give {noun}s, or epochs and samples, to ask about a whole run."
            return f"This charge holds {available}, {enough}. {hint}{caveat}"
        answer = next(text for text, least in _FINISHES.items() if finish.probability >= least)
        answer = answer.format(share=f"{100 * finish.probability:.1f} %")
        interval = format_interval(finish.interval_j, format_energy)
        needed = f"{format_energy(finish.needed_j)} ({format_level(self.step.level)} {interval})"
        return (
            f"Will it finish on this charge? {answer}: it needs {needed} of {available}, which is "
            f"{enough}.{caveat}"
        )

    def _list_notes(self) -> list[str]:
        step, setup = self.step, self.setup
        is_run = self.run.schedule.steps > 1 and not is_inference(setup)
        missing = self.run.not_included if is_run else explain_not_included(setup)
        notes = [f"{_describe_memory(step)} {missing}", _describe_source(step)]
        if step.is_measured:
            notes.append(
                f"{begin_sentence(setup)} was measured as a whole; the model only divides its "
                "energy among the layers."
            )
        if step.host_share is not None and step.host_share > _MIN_HOST_SHARE:
            notes.append(
                f"{format_share(step.host_share)} of the energy is spent waiting for the host; "
                f"without waiting, {begin_sentence(setup).lower()} takes "
                f"{format_energy(step.device_energy_j or 0.0)}."
            )
        notes += _explain_interval(step)
        if step.unseen_share > 0:
            observations = self.profile.observations if self.profile else ()
            setups = [one for one, _ in summarise_observations(observations).setups]
            notes.append(_explain_unseen(step, setup, setups))
        return notes


def report_step(step: Estimate) -> Report:
    """Return the report of one step: energy, duration, memory, the costliest layers and notes."""
    lead = Text(f"A step takes {_format_cost(step, step)}.", "lead")
    notes = (_describe_memory(step), _describe_source(step))
    return _report(f"Estimate for {_name_place(step)}", step, [lead], notes)


def _report(
    title: str,
    step: Estimate,
    blocks: Sequence[Block],
    notes: Sequence[str],
    warnings: Sequence[str] = (),
    every_layer: bool = False,
) -> Report:
    from joulecast.estimators.fitted_profile import explain_memory

    warnings = (*warnings, *explain_memory(step))
    notes = (*notes, *(note for note in step.notes if note not in warnings))
    shown = (
        *blocks,
        *(Text(warning, "warning") for warning in warnings),
        tabulate_layers(step, every_layer),
        *(Text(note, "note") for note in notes),
    )
    return Report(title, shown, step.provenance, "estimate")


def _name_place(step: Estimate) -> str:
    return f"{step.gpus} × {step.device}" if step.gpus > 1 else step.device


def list_run_lines(cost: RunCost, setup: Setup, gpus: int = 1) -> list[str]:
    """Return a line for each part of a run, for the run, and for all runs of a sweep."""
    steps, runs = cost.schedule.steps, cost.schedule.runs
    training, *others = cost.parts
    lines = []
    if steps > 1:
        lines.append(f"{plural(steps, name_step(setup))} take {_format_cost(training, cost)}.")
    lines += [_describe_part(part, cost, gpus) for part in others]
    if others:
        lines.append(f"The run takes {_format_cost(cost, cost, runs)}.")
    if runs > 1:
        lines.append(f"{plural(runs, 'run')} take {_format_cost(cost, cost)}.")
    return lines


def _describe_part(part: RunPart, cost: RunCost, gpus: int) -> str:
    if part.name == EVALUATION:
        schedule = cost.schedule
        count = schedule.evaluation_batches
        batches = f"{count:,} {'batch' if count == 1 else 'batches'}"
        batches += " per GPU" if gpus > 1 else ""
        what = f"{plural(schedule.evaluations, 'evaluation')} of {batches}"
        takes = "takes" if schedule.evaluations == 1 else "take"
        return f"{what} {takes} {_format_cost(part, cost)}."
    assert part.name == WAITING and cost.wait is not None
    loading = cost.wait.loading
    what = f"a batch takes {format_duration(loading.batch_s)} to load"
    with_workers = f" with {plural(loading.workers, 'worker')}" if loading.workers else ""
    if not cost.wait.wait_s:
        return f"Loading data adds nothing: {what}{with_workers}, behind the step."
    adds = format_duration(part.duration_s)
    if cost.wait.idle_w is not None:
        idle = format_power(cost.wait.idle_w) + (" per GPU" if gpus > 1 else "")
        adds = f"{format_energy(part.energy_j)} (idle power {idle}) and {adds}"
    waits = f"of which the device waits {format_duration(cost.wait.wait_s)}"
    return f"Loading data adds {adds}: {what}{with_workers}, {waits}."


def _format_cost(
    part: Estimate | RunPart | RunCost, whole: Estimate | RunCost, runs: int = 1
) -> str:
    """Return the energy and duration of a part, or of one of its equal runs."""
    low_j, high_j = part.interval_j
    ends_j = (low_j / runs, high_j / runs)
    energy = format_with_interval(part.energy_j / runs, ends_j, whole.level, whole.provenance)
    return f"{energy} and {format_duration(part.duration_s / runs)}"


def _describe_step(setup: Setup, step: Estimate) -> str:
    """Return what a step or an inference takes; the duration of an inference is its latency."""
    start = begin_sentence(setup)
    if not is_inference(setup):
        if step.data_parallel is not None:
            start += f" of {step.data_parallel.samples_per_step:,} samples"
        return f"{start} takes {_format_cost(step, step)}."
    energy = format_with_interval(step.energy_j, step.interval_j, step.level, step.provenance)
    duration = format_duration(step.duration_s)
    if step.duration_interval_s is not None:
        ends = format_interval(step.duration_interval_s, format_duration)
        duration += f" ({format_level(step.level)} {ends})"
    return f"{start} takes {energy}, with a latency of {duration}."


def _describe_source(step: Estimate) -> str:
    part, source = step.data_parallel, describe_provenance(step.provenance)
    if part is not None:
        source = (
            f"a step of one GPU {describe_provenance(part.step_provenance)}; the cost of using "
            f"{part.gpus} GPUs is {part.provenance}, not measured"
        )
    return f"Provenance: {source}; {describe_coverage(step.provenance, step.covers)}."


def _describe_scaling(step: Estimate, part: DataParallel) -> str:
    """Return how much more several GPUs do than one, and at which energy."""
    speed = part.gpus * (1.0 - part.added_s / step.duration_s)
    energy = step.energy_j / (step.energy_j - part.added_j)
    return (
        f"{part.gpus} GPUs train {speed:.2f} times the samples per second of one, at {energy:.2f} "
        "times its energy per sample (modelled)."
    )


def _describe_memory(step: Estimate) -> str:
    needed = format_bytes(step.peak_memory_bytes) + (" per GPU" if step.gpus > 1 else "")
    memory_bytes = step.device_memory_bytes
    available = f"; the device has {format_bytes(memory_bytes)}" if memory_bytes else ""
    return f"Peak memory about {needed}{available}."


def _explain_interval(step: Estimate) -> list[str]:
    """Return where the interval comes from, and whether a probe would narrow it."""
    parts = [
        f"{name} ({format_share(share)})"
        for name, share in step.uncertainty_sources.items()
        if share >= _MIN_SOURCE_SHARE
    ]
    if not parts:
        return []
    text = f"Sources of uncertainty: {', '.join(parts)}."
    half = step.interval_j[1] / step.energy_j - 1.0
    if step.is_measured or half < _MIN_HALF_SHARE:
        return [text]
    return [
        f"{text} On the device, a probe would measure this step in a few seconds, which narrows "
        f"the interval from ± {format_share(half)} to a few percent."
    ]


def _explain_unseen(step: Estimate, setup: Setup, known: Sequence[Setup]) -> str:
    advice = "run `joulecast profile NET --missing` for this net on the device"
    if known and setup not in known:
        nearest = describe_nearest(setup, known)
        advice = f"the profile has {nearest}; use one of these, or profile this setup too"
    return (
        f"{format_share(step.unseen_share)} of the energy is extrapolated to layers never measured "
        f"on this device: {advice}."
    )


def describe_nearest(setup: Setup, known: Sequence[Setup]) -> str:
    """Return the few setups nearest to one, and how many more there are."""

    def distance(other: Setup) -> tuple[int, float]:
        names = {one.name for one in fields(Setup)} - {"batch", "cudnn_benchmark"}
        differences = sum(getattr(other, name) != getattr(setup, name) for name in names)
        return differences, abs(math.log(other.batch / setup.batch))

    nearest = sorted(known, key=distance)[:_MAX_SETUPS]
    more = len(known) - len(nearest)
    text = "; ".join(map(describe_setup, nearest))
    return f"{text}; and {plural(more, 'more setup')}" if more else text


# ---------------------------------------------------------------------------------------------
# The table of layers
#
#     layer        kind          count   energy   share
#     h.0–23       block of 9      ×24   48.6 J  70.5 %  ███████████▎
#       fc         linear          ×24   17.5 J  25.4 %  ████
#       other 8 layers                   31.1 J  45.1 %  ███████▎
#     lm_head      linear                20.3 J  29.4 %  ████▊

_TOP_ROWS = 8
_TOP_INNER_ROWS = 5
# Blocks with less of the energy are one row, without the layers in them.
_MIN_OPENED_SHARE = 0.25
# Rows with less are summed, as long as there are several.
_MIN_ROW_SHARE = 0.001
_BAR_WIDTH = 16
_NAME_WIDTH = 26
_SMALLEST_SHARE = 0.0005


# A row, of a layer or of equal blocks, and the rows of the layers in these blocks.
Row = tuple[LayerEstimate, Sequence[LayerEstimate]]


def tabulate_layers(estimate: Estimate, every: bool = False) -> Table:
    """Return the energy of layers: every one in call order, or the costliest and the rest as one.

    Blocks are rows if some of them are equal; else their layers are.
    """
    rows: list[Row] = [(layer, ()) for layer in estimate.layers]
    if not every:
        blocks = estimate.blocks if any(block.count > 1 for block in estimate.blocks) else ()
        places = ((start, block.layer_count) for block in blocks for start in block.starts)
        inside = {at for start, count in places for at in range(start, start + count)}
        rows = [row for at, row in enumerate(rows) if at not in inside]
        rows = [_make_block_row(block, estimate.layers) for block in blocks] + rows
        rows = _merge_small_rows(rows, _TOP_ROWS, _MIN_ROW_SHARE * estimate.energy_j)
    cells: list[Sequence[str]] = []
    for row, inner in rows:
        cells.append(_format_row(row, estimate))
        if row.energy_j >= _MIN_OPENED_SHARE * estimate.energy_j:
            cells += [_format_row(one, estimate, "  ") for one in inner]
    columns = ["layer", "kind", ">count", ">energy", ">share", " "]
    if not any(cell[2] for cell in cells):
        columns.pop(2)
        cells = [(*cell[:2], *cell[3:]) for cell in cells]
    return make_table(columns, cells)


def _make_block_row(block: BlockEstimate, layers: Sequence[LayerEstimate]) -> Row:
    """Return the row of equal blocks; a row inside is the sum of one layer over all of them."""
    inner: list[Row] = []
    first = block.starts[0]
    paths = [layer.name.split(".") for layer in layers[first : first + block.layer_count]]
    # The dotted path that all names begin with is left out.
    depth = 0
    while all(len(path) > depth + 1 for path in paths) and len({p[depth] for p in paths}) == 1:
        depth += 1
    for at, path in enumerate(paths):
        equal = [layers[start + at] for start in block.starts]
        energy_j = sum(layer.energy_j for layer in equal)
        calls, seen = sum(layer.calls for layer in equal), all(layer.seen for layer in equal)
        name = ".".join(path[depth:])
        inner.append((LayerEstimate(name, equal[0].kind, energy_j, calls, seen), ()))
    is_seen, kind = all(row.seen for row, _ in inner), f"block of {block.layer_count}"
    whole = LayerEstimate(block.name, kind, block.energy_j, block.count, is_seen)
    return whole, [row for row, _ in _merge_small_rows(inner, _TOP_INNER_ROWS)]


def _merge_small_rows(rows: Sequence[Row], top: int, least_j: float = 0.0) -> list[Row]:
    """Return the ``top`` rows that take most energy, at least ``least_j``; the others as one."""
    ranked = sorted(rows, key=lambda row: -row[0].energy_j)
    top = min(top, sum(row.energy_j >= least_j for row, _ in ranked))
    rest = ranked[top:]
    if len(rest) < 2:
        return ranked
    total_j = sum(row.energy_j for row, _ in rest)
    count = sum(row.calls if inner else 1 for row, inner in rest)
    noun = "layers and blocks" if any(inner for _, inner in rest) else "layers"
    is_seen = all(row.seen for row, _ in rest)
    merged = LayerEstimate(f"other {count} {noun}", "", total_j, seen=is_seen)
    return [*ranked[:top], (merged, ())]


def _format_row(row: LayerEstimate, estimate: Estimate, indent: str = "") -> tuple[str, ...]:
    share = row.energy_j / estimate.energy_j if estimate.energy_j else 0.0
    percent = f"{100 * share:.1f} %" if share >= _SMALLEST_SHARE or not share else "<0.1 %"
    return (
        indent + shorten_path(row.name, _NAME_WIDTH - len(indent)),
        row.kind,
        f"×{row.calls}" if row.calls > 1 else "",
        ("" if row.seen else "about ") + format_energy(row.energy_j),
        percent,
        make_bar(share, _BAR_WIDTH),
    )
