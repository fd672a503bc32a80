"""Fig. 13: a network on faces, pruned to half of its energy by different guides.

    random, subtractive    the paper: random channel pruning by its estimator
    random, additive       the same with our estimator
    marginal, additive     our strategy and estimator, 90 % confidence
    random, FLOPs          random channel pruning by FLOPs

Ten seeds each. Random candidates are those of Li et al. (CVPR 2022), of which the one that keeps
most weight magnitude within the budget is taken. The paper trains on CelebA's gender attribute;
without its folder, faces are drawn. No network that is measured was seen by an estimator.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from joulecast.errors import InputError, MissingError
from joulecast.estimators import FittedProfile, find_estimator
from joulecast.estimators.base import Target
from joulecast.features.progress_report import ProgressReport
from joulecast.figures import Caption, LearningCurve, Plot, plot_pruned_networks
from joulecast.kinds.channel_groups import ChannelGroup, narrow_network
from joulecast.records import Network, Profile, Setup, Trial
from joulecast.uses.reproduce.experiment import (
    HELD,
    NOT_HELD,
    Experiment,
    ExperimentResult,
    Findings,
    PlannedWork,
)
from joulecast.uses.reproduce.laboratory import Laboratory, sum_cost_s
from joulecast.uses.reproduce.paper_settings import TRIAL_S, PaperSettings
from joulecast.uses.reproduce.pruned_seeds import (
    BUDGET_SHARE,
    UNPRUNED,
    PrunedNetwork,
    PrunedSeed,
    PruningGuide,
    describe_faces,
    find_seed,
    prune_seed,
    save_seed,
)

if TYPE_CHECKING:
    from joulecast.runtimes.torch.face_training import FaceTrainer

ROLE = "fig13"
OURS = "additive"
PAPER_STEPS = 2000
"""Training steps that the paper states the energy of."""
# A network that is right less often has not learned, and its accuracy means nothing.
_LEARNED_ACCURACY = 0.7
_MOST_POINTS_LOST = 1.0
_TARGET_NETWORKS = 12
_FEWEST_CHANNELS_SHARE = 0.1


@dataclass(frozen=True)
class PruningStudy:
    """How large the experiment is.

    Attributes:
        widths: Channels of the four convolutions.
        size: Height and width of an image.
        setup: Batch and precision of the steps that are measured.
        train_batch: Images of a batch that networks learn from.
        seeds: Number of seeds.
        steps: Training steps before and after pruning, and between tests.
        test_batches: Batches of test images.
        points: Points of the paper's campaign, and of ours.
        seconds: Expected time of one seed without measurements, and of one point of ours.
    """

    widths: tuple[int, ...]
    size: int
    setup: Setup
    train_batch: int
    seeds: int
    steps: tuple[int, int, int]
    test_batches: int
    points: tuple[int, int]
    seconds: tuple[float, float]


_GPU = PruningStudy(
    (64, 128, 256, 512),
    64,
    Setup(batch=512, precision="tf32"),
    train_batch=512,
    seeds=10,
    steps=(500, 200, 50),
    test_batches=8,
    points=(45, 60),
    seconds=(22.0, 0.7),
)
_QUICK_GPU = replace(_GPU, seeds=2, steps=(100, 50, 25), points=(30, 40), seconds=(10.0, 0.7))
# Small batches of small networks wait for the host on a GPU, and cutting channels saves nothing of
# that. Other devices are slower: they learn from small batches.
_SMALL = PruningStudy(
    (32, 64, 128, 256),
    64,
    Setup(batch=128),
    train_batch=32,
    seeds=10,
    steps=(300, 100, 50),
    test_batches=16,
    points=(45, 60),
    seconds=(200.0, 2.0),
)
_QUICK_SMALL = replace(
    _SMALL,
    size=32,
    setup=Setup(batch=256),
    train_batch=4,
    seeds=2,
    steps=(4, 2, 2),
    test_batches=2,
    points=(34, 34),
    seconds=(5.0, 2.0),
)


def find_study(settings: PaperSettings) -> PruningStudy:
    """Return how large the experiment is on a device."""
    if settings.is_gpu:
        return _QUICK_GPU if settings.is_quick else _GPU
    return _QUICK_SMALL if settings.is_quick else _SMALL


def list_guides(settings: PaperSettings) -> dict[str, PruningGuide]:
    """Return the guides by their names: the paper's, the two of ours, and FLOPs."""
    guides = (
        PruningGuide("random", settings.ampere),
        PruningGuide("random", OURS),
        PruningGuide("marginal", OURS, confidence=0.9),
        PruningGuide("random", ""),
    )
    return {guide.name: guide for guide in guides}


def plan(settings: PaperSettings) -> Sequence[PlannedWork]:
    """Return two campaigns, training, and a step of each network."""
    study = find_study(settings)
    paper, ours = study.points
    steps = study.seeds * (1 + len(list_guides(settings)))
    return (
        PlannedWork(f"faces: campaign of {settings.ampere}", paper, TRIAL_S * paper),
        PlannedWork(f"faces: campaign of {OURS}", ours, study.seconds[1] * ours),
        PlannedWork("faces: training and pruning", study.seeds, study.seeds * study.seconds[0]),
        PlannedWork("faces: steps of pruned networks", steps, TRIAL_S * steps),
    )


def measure(lab: Laboratory) -> None:
    """Train and prune the seeds that are missing, and measure a step of each network."""
    study = find_study(lab.settings)
    faces = describe_faces(lab.celeba)
    tools: _Tools | None = None
    for seed in range(1, study.seeds + 1):
        found = find_seed(lab.folder, seed)
        if found is not None and found.faces != faces:
            raise InputError(
                f"{lab.folder} holds networks that were trained on {found.faces}: give the same "
                "--celeba, or another --out"
            )
        if found is None:
            lab.check_time()
            tools = tools or _prepare(lab, study)
            lab.on_progress(ProgressReport(seed - 1, study.seeds, "seeds of fig13", f"seed {seed}"))
            found = prune_seed(tools.trainer, seed, list_guides(lab.settings), tools.fits)
            save_seed(lab.folder, found)
        trials = [_make_trial(found, one) for one in found.networks.values() if one.network]
        lab.measure(trials, f"{ROLE}.{seed}")


def analyse(lab: Laboratory) -> Findings:
    """Compare measured energies with the budget, and accuracies with the unpruned network's."""
    study = find_study(lab.settings)
    kept = [find_seed(lab.folder, seed) for seed in range(1, study.seeds + 1)]
    seeds = [_read_seed(lab, one) for one in kept if one is not None]
    seeds = [one for one in seeds if len(one) > 1]
    if not seeds:
        raise MissingError("no pruned network was measured")
    guides = list(list_guides(lab.settings))
    rows = {name: _summarise(seeds, name) for name in (UNPRUNED, *guides)}
    paper, flops = rows[guides[0]], rows[guides[-1]]
    if not paper["shares"] or not flops["shares"]:
        raise MissingError("no network pruned by the paper's method, or by FLOPs, was measured")
    roles = [f"{ROLE}.{name}" for name in (lab.settings.ampere, OURS)]
    roles += [f"{ROLE}.{seed}" for seed in range(1, study.seeds + 1)]
    seconds = sum(sum_cost_s(lab.list_role(role)) for role in roles)
    numbers = {
        "faces": next(one.faces for one in kept if one is not None),
        "seeds": len(seeds),
        "seeds_learned": sum(_has_learned(one) for one in seeds),
        "budget_share": BUDGET_SHARE,
        "rows": rows,
        "by_seed": seeds,
    }
    finding, notes = _describe_finding(rows, guides), _list_notes(numbers)
    found = Findings(judge(paper, flops), finding, numbers, seconds, notes)
    return found.mark_partial(len(seeds), study.seeds, "seeds")


def judge(paper: Mapping[str, Any], flops: Mapping[str, Any]) -> str:
    """Return whether the paper's guide keeps the budget and accuracy, and FLOPs do not."""
    is_kept = paper["mean_share"] <= BUDGET_SHARE < flops["mean_share"]
    lost = paper["mean_accuracy_points_lost"]
    is_accurate = lost is None or lost <= _MOST_POINTS_LOST
    return HELD if is_kept and is_accurate else NOT_HELD


def draw(results: Sequence[ExperimentResult]) -> Plot:
    """Draw loss and accuracy of three networks, and the energies of all guides."""
    first = results[0]
    rows: Mapping[str, Any] = first.numbers["rows"]
    guides = [name for name in rows if name != UNPRUNED]
    curves = {
        name: LearningCurve(*(tuple(rows[name][key]) for key in ("steps", "losses", "accuracies")))
        for name in (UNPRUNED, guides[0], guides[-1])
        if rows[name]["steps"]
    }
    shares = {name: rows[name]["shares"] for name in guides if rows[name]["shares"]}
    subtitle = (
        f"{first.numbers['faces']}, {first.numbers['seeds']} seeds on {first.device.name}; budget "
        f"{100 * BUDGET_SHARE:g} % of the energy of a step"
    )
    title = "Fig. 13: networks pruned to half of their energy"
    caption = Caption(title, subtitle, first.provenance)
    return plot_pruned_networks(curves, shares, BUDGET_SHARE, caption)


# ---------------------------------------------------------------------------------------------
# Measuring


@dataclass(frozen=True)
class _Tools:
    """What a seed needs."""

    trainer: FaceTrainer
    fits: Mapping[str, FittedProfile]


def _prepare(lab: Laboratory, study: PruningStudy) -> _Tools:
    """Run the campaigns of both estimators that are not complete yet, and fit them."""
    from joulecast.runtimes.torch.face_training import FaceTask, FaceTrainer

    task = FaceTask(
        study.widths,
        study.size,
        study.setup,
        study.train_batch,
        *study.steps,
        study.test_batches,
        celeba=lab.celeba,
    )
    trainer = FaceTrainer(task, lab.torch_device)
    paper = lab.settings.ampere
    by_curve = Target(trainer.network, study.setup, acquisition="energy")
    drawn = _draw_narrow(trainer.network, trainer.channels.groups)
    by_total = Target(trainer.network, study.setup, networks=(trainer.network, *drawn))
    fits = {}
    for name, target, points in zip((paper, OURS), (by_curve, by_total), study.points, strict=True):
        method, role = find_estimator(name), f"{ROLE}.{name}"
        if len(lab.list_role(role)) < points:
            lab.run_campaign(method, target, role, points)
        own = lab.profile
        seen = tuple(lab.list_role(role))
        profile = Profile(own.device, own.runtime, own.covers, own.provenance, seen)
        # Both learn from their campaign alone, without what a data sheet says.
        fits[name] = FittedProfile(profile, method, method.fit(seen))
    return _Tools(trainer, fits)


def _draw_narrow(network: Network, groups: Sequence[ChannelGroup]) -> tuple[Network, ...]:
    """Return random networks like those that pruning compares, for our campaign to aim at."""
    rng = random.Random(ROLE)
    found = []
    for _ in range(_TARGET_NETWORKS):
        counts = {
            group.name: rng.randint(
                max(1, round(_FEWEST_CHANNELS_SHARE * group.channels)), group.channels
            )
            for group in groups
        }
        found.append(narrow_network(network, groups, counts))
    return tuple(found)


def _make_trial(seed: PrunedSeed, one: PrunedNetwork) -> Trial:
    assert one.network is not None
    return Trial(one.network, seed.setup)


# ---------------------------------------------------------------------------------------------
# Analysing


def _read_seed(lab: Laboratory, seed: PrunedSeed) -> dict[str, Any]:
    """Return the measured networks of a seed, by guide; none until all of them were tried."""
    role = f"{ROLE}.{seed.seed}"
    tried = {one.trial.key for one in lab.list_role(role)}
    trials = [_make_trial(seed, one) for one in seed.networks.values() if one.network]
    if not tried.issuperset(trial.key for trial in trials):
        return {}
    energies_j: dict[str, float] = {}
    for name, one in seed.networks.items():
        if one.network is not None:
            trial = _make_trial(seed, one)
            seen = lab.find([trial], role)[trial.key]
            if seen:
                energies_j[name] = statistics.median(o.energy_j or 0.0 for o in seen)
    if UNPRUNED not in energies_j:
        return {}
    whole = seed.networks[UNPRUNED]
    return {
        name: {
            "seed": seed.seed,
            "energy_j": energy_j,
            "share": energy_j / energies_j[UNPRUNED],
            "estimated_share": seed.networks[name].estimated_share,
            "counts": dict(seed.networks[name].counts),
            "steps": list(seed.networks[name].steps),
            "losses": list(seed.networks[name].losses),
            "accuracies": list(seed.networks[name].accuracies),
            "accuracy_points_lost": 100.0
            * (whole.accuracies[-1] - seed.networks[name].accuracies[-1]),
        }
        for name, energy_j in energies_j.items()
    }


def _has_learned(seed: Mapping[str, Any]) -> bool:
    return bool(seed[UNPRUNED]["accuracies"][-1] >= _LEARNED_ACCURACY)


def _summarise(seeds: Sequence[Mapping[str, Any]], name: str) -> dict[str, Any]:
    """Return shares of all seeds, and means; accuracies of the seeds that learned."""
    rows = [seed[name] for seed in seeds if name in seed]
    learned = [seed[name] for seed in seeds if name in seed and _has_learned(seed)]
    shares = [row["share"] for row in rows]
    curves = {
        key: [
            statistics.fmean(values)
            for values in zip(*(row[key] for row in learned or rows), strict=True)
        ]
        for key in ("losses", "accuracies")
    }
    return {
        "shares": shares,
        "mean_share": statistics.fmean(shares) if shares else None,
        "above_budget": sum(share > BUDGET_SHARE for share in shares),
        "mean_energy_j": statistics.fmean(row["energy_j"] for row in rows) if rows else None,
        "mean_accuracy_points_lost": (
            statistics.fmean(row["accuracy_points_lost"] for row in learned) if learned else None
        ),
        "failures": len(seeds) - len(rows),
        "steps": rows[0]["steps"] if rows else [],
        **curves,
    }


def _describe_finding(rows: Mapping[str, Mapping[str, Any]], guides: Sequence[str]) -> str:
    parts = []
    for name in guides:
        row = rows[name]
        if not row["shares"]:
            parts.append(f"{name}: no network within the budget")
            continue
        text = f"{name}: {100 * row['mean_share']:.1f} % of the energy of a step"
        text += f" ({100 * min(row['shares']):.1f}–{100 * max(row['shares']):.1f} %"
        text += f", above the budget in {row['above_budget']} of {len(row['shares'])} seeds"
        if row["mean_accuracy_points_lost"] is not None:
            text += f", {row['mean_accuracy_points_lost']:z.2f} points of accuracy lost"
        parts.append(text + ")")
    whole_j = PAPER_STEPS * rows[UNPRUNED]["mean_energy_j"]
    return f"{'; '.join(parts)}. {PAPER_STEPS:,} unpruned steps take {whole_j:,.0f} J."


def _list_notes(numbers: Mapping[str, Any]) -> tuple[str, ...]:
    seeds, learned = numbers["seeds"], numbers["seeds_learned"]
    notes = [
        f"Trained on {numbers['faces']}; the network is ours, the paper does not give its own. "
        "Energy is that of a training step, without loading or drawing images.",
        "Seeds share both campaigns, so that their errors are not independent.",
    ]
    if learned < seeds:
        notes.append(
            f"In {seeds - learned} of {seeds} seeds the unpruned network did not learn (accuracy "
            f"below {100 * _LEARNED_ACCURACY:.0f} %): of these, only the energies count."
        )
    failed = {name: row["failures"] for name, row in numbers["rows"].items() if row["failures"]}
    notes += [
        f"{name}: no network in {count} seed{'s' * (count > 1)}." for name, count in failed.items()
    ]
    return tuple(notes)


PRUNED_NETWORKS = Experiment(
    ROLE,
    "Networks pruned to half of their energy",
    "Random channel pruning guided by AMPERE to a budget of 50 % uses 49.2 % of the energy when "
    "measured, at the accuracy of the unpruned network; guided by FLOPs it exceeds the budget.",
    f"Over all seeds the mean measured share is at most {100 * BUDGET_SHARE:g} % by the paper's "
    "estimator and above by FLOPs, and where the unpruned network learned, accuracy falls by at "
    f"most {_MOST_POINTS_LOST:g} point.",
    plan,
    measure,
    analyse,
    draw,
)
