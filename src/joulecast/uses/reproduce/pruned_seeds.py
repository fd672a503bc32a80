"""Train and prune the network of the pruning study for one seed, and keep what came out.

    train ─▶ for each guide: choose channels on records, remove them, train on ─▶ a file of the seed

The unpruned network is trained once for all guides of a seed, and trained on like the others. A
seed is written as soon as it is done. Energies are not part of it: the laboratory measures a step
of each network and keeps the observations.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from joulecast.budgets import EnergyBudget, RunLength, parse_budget
from joulecast.errors import FileError, InputError
from joulecast.estimators import FittedProfile
from joulecast.features.channel_search import PruneOptions, prune_network
from joulecast.files import write_atomically
from joulecast.input_files import MOST_JSON_BYTES, parse_json, read_limited
from joulecast.records import Network, Setup, load_record
from joulecast.records.codec import Record

if TYPE_CHECKING:
    from joulecast.runtimes.torch.face_training import FaceNet, FaceTrainer

UNPRUNED = "unpruned"
BUDGET_SHARE = 0.5


@dataclass(frozen=True)
class PruningGuide:
    """How the channels of a network are chosen.

    Attributes:
        strategy: Strategy of pruning.
        estimator: Estimates energies; empty to count FLOPs.
        confidence: Probability with which the network must meet the budget.
    """

    strategy: str
    estimator: str
    confidence: float = 0.5

    @property
    def name(self) -> str:
        """How results call it."""
        return f"{self.strategy}, {self.estimator or 'FLOPs'}"


@dataclass(frozen=True)
class PrunedNetwork(Record):
    """A network of one seed, pruned or not, and how it learned.

    Attributes:
        network: The network; None if no network was found within the budget.
        counts: Channels that remain, by group; empty if nothing was pruned.
        estimated_share: Energy or FLOPs as a share of the unpruned network's, as estimated.
        steps: Steps after which it was tested.
        losses: Test loss at each of them.
        accuracies: Test accuracy at each of them.
        failure: Why there is no network.
    """

    network: Network | None
    counts: Mapping[str, int]
    estimated_share: float | None
    steps: tuple[int, ...] = ()
    losses: tuple[float, ...] = ()
    accuracies: tuple[float, ...] = ()
    failure: str = ""


@dataclass(frozen=True)
class PrunedSeed(Record):
    """All networks of one seed.

    Attributes:
        faces: Where the images come from.
        setup: How a step is trained.
        networks: Networks by the name of their guide.
    """

    seed: int
    faces: str
    setup: Setup
    networks: Mapping[str, PrunedNetwork]


def prune_seed(
    trainer: FaceTrainer,
    seed: int,
    guides: Mapping[str, PruningGuide],
    fits: Mapping[str, FittedProfile],
) -> PrunedSeed:
    """Train a network, prune it by each guide, and train all of them on.

    Args:
        trainer: Trains networks.
        seed: Decides weights, batches and random candidates.
        guides: How channels are chosen, by name.
        fits: Fitted estimators by name.
    """
    trained = trainer.train(seed)
    groups = trainer.rank_channels(trained)
    budget = _make_budget()
    setup = trainer.task.setup
    kept = trainer.continue_training(trained, groups, {}, seed)
    networks = {UNPRUNED: _describe(kept, trainer.network, {}, 1.0)}
    for name, guide in guides.items():
        options = PruneOptions(
            strategy=guide.strategy,
            objective="energy" if guide.estimator else "flops",
            confidence=guide.confidence,
            seed=seed,
            estimator=guide.estimator or "auto",
        )
        fitted = fits.get(guide.estimator)
        try:
            found = prune_network(trainer.network, groups, setup, budget, fitted, options)
        except InputError as error:
            networks[name] = PrunedNetwork(None, {}, None, failure=str(error))
            continue
        tuned = trainer.continue_training(trained, groups, found.counts, seed)
        share = found.cost_after / found.cost_before
        networks[name] = _describe(tuned, found.pruned, found.counts, share)
    return PrunedSeed(seed, describe_faces(trainer.task.celeba), setup, networks)


def describe_faces(celeba: str) -> str:
    """Return where images come from."""
    return "CelebA, attribute Male" if celeba else "drawn faces"


def find_seed(folder: Path, seed: int) -> PrunedSeed | None:
    """Return a seed that was kept; None if it was not trained yet.

    Raises:
        FileError: Its file is damaged.
    """
    path = _name_file(folder, seed)
    if not path.exists():
        return None
    try:
        data = parse_json(read_limited(path, MOST_JSON_BYTES))
    except ValueError as error:
        raise FileError(f"{path} is not JSON ({error}): remove it to train it again") from error
    return load_record(PrunedSeed, data, str(path))


def save_seed(folder: Path, found: PrunedSeed) -> None:
    """Write a seed."""
    text = json.dumps(found.to_dict(), allow_nan=False)
    write_atomically(text.encode("utf-8") + b"\n", _name_file(folder, found.seed))


def _name_file(folder: Path, seed: int) -> Path:
    return folder / f"fig13-seed-{seed}.json"


def _make_budget() -> EnergyBudget:
    return parse_budget(f"{100 * BUDGET_SHARE:g}%", RunLength())


def _describe(
    net: FaceNet, network: Network, counts: Mapping[str, int], share: float
) -> PrunedNetwork:
    return PrunedNetwork(
        network,
        dict(counts),
        share,
        tuple(point.step for point in net.learning),
        tuple(point.loss for point in net.learning),
        tuple(point.accuracy for point in net.learning),
    )
