"""Fig. 13: a network on faces, pruned to half of its energy by different guides.

    walk, subtractive      the paper: random channel pruning by its estimator
    walk, additive         the same with our estimator
    marginal, additive     our strategy and estimator, 90 % confidence
    walk, FLOPs            random channel pruning by FLOPs

Ten seeds each. A walk removes random channels until the estimate is within the budget. The kept
results took the best of random candidates instead (``random``), as Li et al. (CVPR 2022) do. The
paper trains on CelebA's gender attribute; without its folder, faces are drawn. No network that is
measured was seen by an estimator. A seed is written as soon as it is trained; the energies of its
networks are observations like all others.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from joulecast.estimators import FittedProfile, find_estimator
from joulecast.estimators.base import Target
from joulecast.features.channel_search import PruneOptions, prune_network
from joulecast.features.run import RunLength, parse_budget
from joulecast.operators.channel_groups import narrow_network
from joulecast.records import Network, Record, Setup, Trial
from joulecast.system.errors import InputError, MissingError
from papers.ampere import experiment as ex
from papers.ampere.experiment import LIMITS, TRIAL_S, Findings, Json, Settings, Work
from papers.ampere.lab import Lab, find_median_j
from papers.ampere.plots import DARK, GREY, RED, Canvas

if TYPE_CHECKING:
    from papers.ampere.faces import FaceTrainer

OURS, UNPRUNED = "additive", "unpruned"
BUDGET_SHARE = LIMITS["fig13"]["budget_percent"] / 100
# Training steps that the paper states the energy of.
_PAPER_STEPS = 2000
# A network that is right less often has not learned, and its accuracy means nothing.
_LEARNED_ACCURACY = 0.7
_TARGET_NETWORKS = 12
# What a result repeats of a network.
_KEPT = ("estimated_share", "counts", "steps", "losses", "accuracies")
_Row = Mapping[str, Any]
_Guides = dict[str, tuple[str, str, float]]


@dataclass(frozen=True)
class Study:
    """How large the experiment is, as ``settings.toml`` explains."""

    widths: Sequence[int]
    size: int
    setup: Json
    train_batch: int
    seeds: int
    steps: Sequence[int]
    test_batches: int
    points: Sequence[int]
    seconds: Sequence[float]
    learning_rate: float = 0.02


@dataclass(frozen=True)
class PrunedNetwork(Record):
    """A network of one seed, and how it learned; None with the reason if none was found."""

    network: Network | None
    counts: Mapping[str, int]
    estimated_share: float | None
    steps: tuple[int, ...] = ()
    losses: tuple[float, ...] = ()
    accuracies: tuple[float, ...] = ()
    failure: str = ""


@dataclass(frozen=True)
class PrunedSeed(Record):
    """All networks of one seed by their guide, how they are trained, and on which images."""

    seed: int
    faces: str
    setup: Setup
    networks: Mapping[str, PrunedNetwork]

    def list_trials(self) -> dict[str, Trial]:
        found = {name: one.network for name, one in self.networks.items()}
        return {name: Trial(net, self.setup) for name, net in found.items() if net is not None}


def find_study(settings: Settings) -> Study:
    return Study(**ex.SIZES["faces"][f"{settings.kind}_{settings.length}"])


def list_guides(settings: Settings) -> _Guides:
    """Return strategy, estimator (empty to count FLOPs) and confidence of each guide by name."""
    guides = [("walk", settings.name_estimator(), 0.5), ("walk", OURS, 0.5)]
    guides += [("marginal", OURS, 0.9), ("walk", "", 0.5)]
    return {f"{one[0]}, {one[1] or 'FLOPs'}": one for one in guides}


def plan_fig13(settings: Settings) -> list[Work]:
    study = find_study(settings)
    (paper, ours), steps = study.points, study.seeds * (1 + len(list_guides(settings)))
    seconds = TRIAL_S * (paper + steps) + study.seconds[1] * ours + study.seconds[0] * study.seeds
    name = (
        f"faces: campaigns of {settings.name_estimator()} ({paper} points) and {OURS} ({ours}), "
        f"{study.seeds} seeds trained and pruned, {steps} networks measured"
    )
    return [Work(name, paper + ours + steps, seconds, _measure)]


def _measure(lab: Lab) -> None:
    """Train and prune the seeds that are missing, and measure a step of each network."""
    study = find_study(lab.settings)
    faces = "CelebA, attribute Male" if lab.celeba else "drawn faces"
    tools: tuple[FaceTrainer, dict[str, FittedProfile]] | None = None
    for seed in range(1, study.seeds + 1):
        found = lab.folder.find(PrunedSeed, f"fig13-seed-{seed}")
        if found is not None and found.faces != faces:
            raise InputError(
                f"{lab.folder.path} holds networks that were trained on {found.faces}: give the "
                "same --celeba, or another --out"
            )
        if found is None:
            tools = tools or _prepare(lab, study)
            lab.report(seed - 1, study.seeds, "seeds of fig13", f"seed {seed}")
            networks = prune_seed(*tools, seed, list_guides(lab.settings))
            found = PrunedSeed(seed, faces, Setup(**study.setup), networks)
            lab.folder.save(found, f"fig13-seed-{seed}")
        lab.measure(list(found.list_trials().values()), f"fig13.{seed}")


def _prepare(lab: Lab, study: Study) -> tuple[FaceTrainer, dict[str, FittedProfile]]:
    """Run the campaigns of both estimators that are not complete yet, and fit them."""
    from papers.ampere.faces import FaceTrainer

    trainer = FaceTrainer(study, getattr(lab.device.runtime, "torch_device", "cpu"), lab.celeba)
    network, groups = trainer.channels.network, trainer.channels.groups
    # Networks like those that pruning compares, for our campaign to aim at.
    rng, narrow = random.Random("fig13"), []
    for _ in range(_TARGET_NETWORKS):
        ends = {one.name: (max(1, round(0.1 * one.channels)), one.channels) for one in groups}
        counts = {name: rng.randint(low, high) for name, (low, high) in ends.items()}
        narrow.append(narrow_network(network, groups, counts))
    setup, fits = Setup(**study.setup), {}
    targets = {
        lab.settings.name_estimator(): Target(network, setup, acquisition="energy"),
        OURS: Target(network, setup, networks=(network, *narrow)),
    }
    for (name, target), points in zip(targets.items(), study.points, strict=True):
        role = f"fig13.{name}"
        if len(lab.list_role(role)) < points:
            lab.run_campaign(name, target, role, points)
        seen, method = lab.list_role(role), find_estimator(name)
        # Both learn from their campaign alone, without what a data sheet says.
        fits[name] = FittedProfile(lab.settings.make_profile(seen), method, method.fit(seen))
    return trainer, fits


def prune_seed(
    trainer: FaceTrainer, fits: Mapping[str, FittedProfile], seed: int, guides: _Guides
) -> dict[str, PrunedNetwork]:
    """Train a network, prune it by each guide, and train all of them on."""
    trained = trainer.train(seed)
    groups, network = trainer.rank_channels(trained), trainer.channels.network
    budget = parse_budget(f"{100 * BUDGET_SHARE:g}%", RunLength())
    kept = trainer.continue_training(trained, groups, {}, seed)
    networks = {UNPRUNED: PrunedNetwork(network, {}, 1.0, **kept.list_tests())}
    for name, (strategy, estimator, confidence) in guides.items():
        options = PruneOptions(strategy=strategy, confidence=confidence, seed=seed)
        aim = "energy" if estimator else "flops"
        options = replace(options, estimator=estimator or "auto", objective=aim)
        setup, fitted = Setup(**trainer.study.setup), fits.get(estimator)
        try:
            found = prune_network(network, groups, setup, budget, fitted, options)
        except InputError as error:
            networks[name] = PrunedNetwork(None, {}, None, failure=str(error))
            continue
        tuned = trainer.continue_training(trained, groups, found.counts, seed)
        share = found.cost_after / found.cost_before
        counts, tests = dict(found.counts), tuned.list_tests()
        networks[name] = PrunedNetwork(found.pruned, counts, share, **tests)
    return networks


def analyse_fig13(lab: Lab) -> Findings:
    """Compare measured energies with the budget, and accuracies with the unpruned network's."""
    planned = find_study(lab.settings).seeds
    found = [lab.folder.find(PrunedSeed, f"fig13-seed-{at}") for at in range(1, planned + 1)]
    kept = [one for one in found if one is not None]
    seeds = [rows for one in kept if len(rows := _read_seed(lab, one)) > 1]
    if not seeds:
        raise MissingError("no pruned network was measured")
    # Those of the seeds that are kept, in the same order.
    guides = [name for name in kept[0].networks if name != UNPRUNED]
    rows = {name: _summarise(seeds, name) for name in (UNPRUNED, *guides)}
    paper, flops = rows[guides[0]], rows[guides[-1]]
    if not paper["shares"] or not flops["shares"]:
        raise MissingError("no network pruned by the paper's method, or by FLOPs, was measured")
    learned = sum(map(_has_learned, seeds))
    numbers = {"faces": kept[0].faces, "seeds": len(seeds), "seeds_learned": learned}
    numbers |= {"budget_share": BUDGET_SHARE, "rows": rows, "by_seed": seeds}
    notes = [
        f"Trained on {kept[0].faces}; the network is ours, the paper does not give its own. "
        "Energy is that of a training step, without loading or drawing images."
    ]
    if learned < len(seeds):
        notes.append(
            f"In {len(seeds) - learned} of {len(seeds)} seeds the unpruned network did not learn "
            f"(accuracy below {100 * _LEARNED_ACCURACY:.0f} %): of these, only the energies count."
        )
    for name, row in rows.items():
        if count := row["failures"]:
            notes.append(f"{name}: no network in {count} seed{'s' * (count > 1)}.")
    whole_j = _PAPER_STEPS * rows[UNPRUNED]["mean_energy_j"]
    parts = [{"guide": name, "found": _describe_row(rows[name])} for name in guides]
    words, measured = {"steps": _PAPER_STEPS, "whole_j": whole_j}, (len(seeds), planned, "seeds")
    return Findings(has_held(paper, flops), numbers, parts, words, notes, measured)


def has_held(paper: _Row, flops: _Row) -> bool:
    """Return whether the paper's guide keeps the budget and accuracy, and FLOPs do not."""
    lost = paper["mean_accuracy_points_lost"]
    is_accurate = lost is None or lost <= LIMITS["fig13"]["most_points_lost"]
    return bool(paper["mean_share"] <= BUDGET_SHARE < flops["mean_share"] and is_accurate)


def _read_seed(lab: Lab, seed: PrunedSeed) -> Json:
    """Return the measured networks of a seed, by guide; none until all of them were tried."""
    role, trials = f"fig13.{seed.seed}", seed.list_trials()
    tried, found = {one.trial.key for one in lab.list_role(role)}, lab.find(trials.values(), role)
    if not found[trials[UNPRUNED].key] or not tried.issuperset(found):
        return {}
    rows: Json = {}
    whole, whole_j = seed.networks[UNPRUNED], find_median_j(found[trials[UNPRUNED].key])
    for name, trial in trials.items():
        if seen := found[trial.key]:
            one, energy_j = seed.networks[name], find_median_j(seen)
            kept = {key: value for key, value in one.to_dict().items() if key in _KEPT}
            lost = 100.0 * (whole.accuracies[-1] - one.accuracies[-1])
            about = {"energy_j": energy_j, "share": energy_j / whole_j}
            rows[name] = {"seed": seed.seed, **about, **kept, "accuracy_points_lost": lost}
    return rows


def _has_learned(seed: Mapping[str, Any]) -> bool:
    return bool(seed[UNPRUNED]["accuracies"][-1] >= _LEARNED_ACCURACY)


def _summarise(seeds: Sequence[Mapping[str, Any]], name: str) -> Json:
    """Return shares of all seeds, and means; accuracies of the seeds that learned."""
    rows = [seed[name] for seed in seeds if name in seed]
    learned = [seed[name] for seed in seeds if name in seed and _has_learned(seed)]
    shares = [row["share"] for row in rows]
    losses, accuracies = (
        list(map(fmean, zip(*(row[key] for row in learned or rows), strict=True)))
        for key in ("losses", "accuracies")
    )
    return {
        "shares": shares,
        "mean_share": fmean(shares) if shares else None,
        "above_budget": sum(share > BUDGET_SHARE for share in shares),
        "mean_energy_j": fmean(row["energy_j"] for row in rows) if rows else None,
        "mean_accuracy_points_lost": (
            fmean(row["accuracy_points_lost"] for row in learned) if learned else None
        ),
        "failures": len(seeds) - len(rows),
        "steps": rows[0]["steps"] if rows else [],
        "losses": losses,
        "accuracies": accuracies,
    }


def _describe_row(row: _Row) -> str:
    shares, lost = [100 * share for share in row["shares"]], row["mean_accuracy_points_lost"]
    if not shares:
        return "no network within the budget"
    accuracy = "" if lost is None else f", {lost:z.2f} points of accuracy lost"
    return (
        f"{fmean(shares):.1f} % of the energy of a step ({min(shares):.1f}–{max(shares):.1f} %, "
        f"above the budget in {row['above_budget']} of {len(shares)} seeds{accuracy})"
    )


def draw_fig13(canvas: Canvas) -> None:
    numbers = canvas.numbers
    rows: Mapping[str, Any] = numbers["rows"]
    guides = [name for name in rows if name != UNPRUNED]
    loss, accuracy, energy = canvas.add(3, f"{numbers['faces']}, {numbers['seeds']} seeds")
    for name, colour in ((UNPRUNED, DARK), (guides[0], RED), (guides[-1], GREY)):
        steps, percent = rows[name]["steps"], [100 * one for one in rows[name]["accuracies"]]
        loss.plot(steps, rows[name]["losses"], color=colour, label=name)
        accuracy.plot(steps, percent, color=colour, label=name)
    loss.set(xlabel="Training steps", ylabel="Test loss")
    accuracy.set(xlabel="Training steps", ylabel="Test accuracy (%)")
    known = [name for name in guides if rows[name]["shares"]]
    for place, name in enumerate(known):
        shares = [100 * share for share in rows[name]["shares"]]
        spread = [place + 0.5 * (at + 0.5) / len(shares) - 0.25 for at in range(len(shares))]
        energy.plot(spread, shares, "o")
    energy.axhline(100 * BUDGET_SHARE, linestyle="--", color=GREY, label="budget")
    energy.set_xticks(range(len(known)), [name.replace(", ", ",\n") for name in known])
    energy.set(title="Energy of a step, a point for each seed", ylim=(0.0, None))
    energy.set(ylabel="Share of the unpruned network (%)")
