"""What training a neural network costs in joules on your device, before you run it.

    import joulecast

    joulecast.profile("cnn5", on="cpu", seconds=120)           # once: learn what layers cost here
    answer = joulecast.estimate("cnn5:8,16,32,64")             # then ask, for any net
    print(answer.energy_j, answer.interval_j, answer.basis)

A net is a name (a family, ``file.py:make_net``, ``package.module:make_net``, a ``network.json``), a
Network, or a PyTorch module with example inputs. How it is trained say a ``Setup`` or its words
(``batch=128, precision="tf32"``); without them it is the net's own batch, SGD and fp32. Importing
this imports nothing else: neither PyTorch nor numpy before they are needed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from joulecast.api.pruning import Shrunk
    from joulecast.errors import JoulecastError
    from joulecast.records import Estimate, Network, Observation, Profile, Setup
    from joulecast.uses.compare import Comparison
    from joulecast.uses.search import Search

    Shape = tuple[int, ...]

__all__ = [
    "Estimate",
    "JoulecastError",
    "Network",
    "Observation",
    "Profile",
    "Setup",
    "__version__",
    "compare",
    "estimate",
    "load_profile",
    "load_pruned",
    "observe",
    "profile",
    "prune",
    "read",
    "renew",
    "search",
]

_HOMES = {
    "Estimate": "joulecast.records",
    "JoulecastError": "joulecast.errors",
    "Network": "joulecast.records",
    "Observation": "joulecast.records",
    "Profile": "joulecast.records",
    "Setup": "joulecast.records",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("joulecast")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'joulecast' has no attribute {name!r}")


def read(
    net: Any, inputs: Any = None, *, loss: Any = None, input_shape: Shape | None = None
) -> Network:
    """What a net consists of.

    Args:
        net: A name or a module.
        inputs: For a module, what it is called on: a tensor, a tuple or a dict of them.
        loss: For a module, its output → a scalar to run backward from.
        input_shape: For a name, the shape of one sample where it is not the usual one.
    """
    from joulecast.api.nets import take_net

    return take_net(net, inputs, loss, input_shape=input_shape).network


def load_profile(device: str = "", *, store: str | None = None) -> Profile:
    """What a device has learnt.

    Args:
        device: Its name or a profile's key, or how one begins, or a profile's ``.json``; this
            machine's processor by default.
        store: Where the store is, if not where it usually is.
    """
    from joulecast.api.profiles import resolve_profile

    return resolve_profile(device, store)


def estimate(
    net: Any,
    inputs: Any = None,
    *,
    device: str | Profile = "",
    input_shape: Shape | None = None,
    setup: Setup | None = None,
    estimator: str = "additive",
    level: float = 0.95,
    store: str | None = None,
    **words: Any,
) -> Estimate:
    """What a step of training a net costs, with an interval that holds with ``level``.

    Args:
        net: A name, a Network, or a module with ``inputs``.
        inputs: For a module, what it is called on.
        device: Whose profile answers (see ``load_profile``), or the profile.
        input_shape: For a name, the shape of one sample where it is not the usual one.
        setup: How the net is trained.
        estimator: Which method answers.
        level: Probability that the interval holds.
        store: Where the store is, if not where it usually is.
        words: Fields of the setup, like ``batch=128``.
    """
    from joulecast.estimators import estimate_network

    found, setup = _take(net, inputs, None, input_shape, setup, words)
    known = load_profile(device, store=store) if isinstance(device, str) else device
    return estimate_network(known, found.network, setup, estimator, level)


def compare(
    net: Any,
    inputs: Any = None,
    *,
    devices: Sequence[str | Profile],
    setups: Sequence[Setup],
    input_shape: Shape | None = None,
    estimator: str = "additive",
    level: float = 0.95,
    store: str | None = None,
) -> Comparison:
    """Devices and setups ranked by what a sample of a net takes, in joules and seconds.

    Args:
        net: A name, a Network, or a module with ``inputs``.
        inputs: For a module, what it is called on.
        devices: Whose profiles answer (see ``load_profile``), or the profiles.
        setups: How the net may be trained.
        input_shape: For a name, the shape of one sample where it is not the usual one.
        estimator: Which method answers.
        level: Probability that each interval holds.
        store: Where the store is, if not where it usually is.
    """
    from joulecast.api.nets import take_net
    from joulecast.uses.compare import compare as rank

    network = take_net(net, inputs, input_shape=input_shape).network
    profiles = {}
    for one in devices:
        known = load_profile(one, store=store) if isinstance(one, str) else one
        profiles[one if isinstance(one, str) else known.key] = known
    return rank(network, profiles, setups, estimator, level)


def search(
    family: str,
    score: Callable[[Any, Any], float],
    *,
    budget: str,
    device: str | Profile = "",
    steps: int | None = None,
    epochs: int | None = None,
    samples: int | None = None,
    confidence: float = 0.5,
    vary: Mapping[str, Any] | None = None,
    setup: Setup | None = None,
    input_shape: Shape | None = None,
    estimator: str = "additive",
    store: str | None = None,
    **options: Any,
) -> Search:
    """Search nets of a family that are good and keep an energy budget.

    Candidates that would cost too much are ruled out by the estimate; the others are trained.

    Args:
        family: Its name; with widths, they are the largest ones.
        score: Trains a net and says how good it is, more is better: a PyTorch module and Optuna's
            trial → a number. ``trial.params`` has every value that was chosen.
        budget: ``0.5Wh`` or ``50%`` of a run, ``5J/step``; without a length, ``5J`` of a step.
        device: Whose profile answers (see ``load_profile``), or the profile.
        steps: Of a run.
        epochs: Instead of steps: passes over ``samples``.
        samples: Of an epoch.
        confidence: How probable it shall be that the budget is kept.
        vary: Other bounds, and more that varies: ``{"c1": Range(8, 64), "batch": (16, 32)}``, with
            ``Range`` from ``joulecast.uses.search``.
        setup: How nets are trained where nothing varies; the family's own batch by default.
        input_shape: Shape of one sample, where it is not the family's own.
        estimator: Which method answers.
        store: Where the store is, if not where it usually is.
        options: ``trials``, ``sampler``, ``storage`` and more of ``uses.search.study.search``.
    """
    from joulecast.api.nets import build_module
    from joulecast.uses.search import RunLength, make_space, open_screen, parse_budget
    from joulecast.uses.search.study import search as drive

    known = load_profile(device, store=store) if isinstance(device, str) else device
    length = RunLength(steps, epochs, samples)
    space = make_space(family, setup, vary, input_shape)
    limit = parse_budget(budget, length)
    screen = open_screen(known, space, limit, length, confidence=confidence, estimator=estimator)
    return drive(screen, score, **{"build": build_module, **options})


def renew(answer: Estimate, *, energy_j: float, steps: int) -> Estimate:
    """An estimate after the first real steps of a run: drawn to what they took, and surer.

    Args:
        answer: What was estimated before the run.
        energy_j: Joules that these steps took together.
        steps: How many they were.
    """
    from joulecast.estimators import renew_estimate

    return renew_estimate(answer, energy_j, steps)


def observe(
    net: Any,
    inputs: Any = None,
    *,
    loss: Any = None,
    on: str = "cpu",
    meter: str = "auto",
    input_shape: Shape | None = None,
    setup: Setup | None = None,
    rounds: int = 3,
    **words: Any,
) -> Observation:
    """What a step of training a net really costs: it is trained under a meter.

    Args:
        net: A name, a Network, or a module with ``inputs``, whose weights will train.
        inputs: For a module, what it is called on.
        loss: For a module, its output → a scalar to run backward from.
        on: ``cpu``, ``cuda:0`` or ``simulated:SEED``.
        meter: As behind ``--meter`` of the command line.
        input_shape: For a name, the shape of one sample where it is not the usual one.
        setup: How the net is trained.
        rounds: Windows to take the median of.
        words: Fields of the setup, like ``batch=128``.
    """
    from joulecast.api.measuring import observe_net

    found, setup = _take(net, inputs, loss, input_shape, setup, words)
    return observe_net(found, setup, on, meter, rounds=rounds)


def profile(
    net: Any,
    inputs: Any = None,
    *,
    on: str = "cpu",
    meter: str = "auto",
    input_shape: Shape | None = None,
    setup: Setup | None = None,
    points: int | None = None,
    seconds: float | None = None,
    interval_share: float = 0.05,
    guide: str = "target",
    estimator: str = "additive",
    rounds: int = 3,
    store: str | None = None,
    on_progress: Callable[[Any], None] | None = None,
    **words: Any,
) -> Profile:
    """Learn what layers like those of a net cost on a device, up to the net's widths.

    What is measured is kept in the store at once: interrupted, it goes on where it stopped.

    Args:
        net: A name, a Network, or a module with ``inputs``.
        inputs: For a module, what it is called on.
        on: ``cpu``, ``cuda:0`` or ``simulated:SEED``.
        meter: As behind ``--meter`` of the command line.
        input_shape: For a name, the shape of one sample where it is not the usual one.
        setup: How the net is trained.
        points: Measurements at most.
        seconds: Seconds at most; ten minutes where neither is said.
        interval_share: Stop when the net, or a family's members, are known within this share.
        guide: What decides where to measure next: ``target``, what the net gains most from; the
            paper's rule, ``energy`` or ``time``; ``missing``, what was never seen of the net.
        estimator: For which method to measure.
        rounds: Windows of each measurement.
        store: Where the store is, if not where it usually is.
        on_progress: Is told where it stands before every measurement and at the end.
        words: Fields of the setup, like ``batch=128``.
    """
    from joulecast.api.measuring import Budget, learn_net

    found, setup = _take(net, inputs, None, input_shape, setup, words)
    budget = Budget(points, seconds, interval_share, guide, estimator)
    rig = {"on": on, "meter": meter, "rounds": rounds}
    return learn_net(found, setup, budget, rig, store, on_progress)[1]


def prune(
    net: Any,
    inputs: Any = None,
    *,
    budget: str,
    loss: Any = None,
    device: str | Profile = "",
    input_shape: Shape | None = None,
    setup: Setup | None = None,
    steps: int | None = None,
    store: str | None = None,
    strategy: str = "marginal",
    guide: str = "estimate",
    confidence: float = 0.5,
    importance: str = "magnitude",
    floor: float = 0.1,
    keep: tuple[str, ...] = (),
    multiple: int = 1,
    seed: int = 0,
    start: dict[str, int] | None = None,
    probe_on: str = "",
    probe_seconds: float = 20.0,
    meter: str = "auto",
    **words: Any,
) -> Shrunk:
    """A smaller net that keeps an energy budget: its least important channels are cut.

    The module is ``.net`` of what comes back, ``.pruning`` says what it costs before and after and
    how probably the budget is kept, ``.save(folder)`` writes it for ``load_pruned``.

    Args:
        net: A name, a Network, or a module with ``inputs``, which is left as it is.
        inputs: For a module, what it is called on.
        budget: ``50%`` of what it was, ``5J`` a step, ``2Wh`` of all ``steps``.
        loss: For a module, its output → a scalar to run backward from.
        device: Whose profile answers (see ``load_profile``), or the profile.
        input_shape: For a name, the shape of one sample where it is not the usual one.
        setup: How the net is trained.
        steps: Steps of the run that the budget is for.
        store: Where the store is, if not where it usually is.
        strategy: ``marginal``, ``uniform`` or ``random``.
        guide: ``estimate``, or ``flops`` to compare with.
        confidence: How probable keeping the budget shall be.
        importance: ``magnitude``, or ``taylor``: of a module by the gradients that it has.
        floor: What stays of every group of channels: below 1 a share, else a number.
        keep: Patterns of layers that stay whole.
        multiple: Channels come in multiples of this.
        seed: Of random candidates.
        start: ``.pruning.counts`` of an earlier one, to go on from when more was learnt since.
        probe_on: Where the device is (``cuda:0``): layers that are left are looked at there, and
            the choice goes on from what that shows; twice, for ``probe_seconds`` at most each.
        probe_seconds: See ``probe_on``.
        meter: What measures there.
        words: Fields of the setup, like ``batch=128``.
    """
    from joulecast.api.pruning import make_look, shrink_net
    from joulecast.uses.prune import parse_budget

    found, setup = _take(net, inputs, loss, input_shape, setup, words)
    known = load_profile(device, store=store) if isinstance(device, str) else device
    return shrink_net(
        found,
        setup,
        parse_budget(budget, steps),
        known,
        source=net if isinstance(net, str) else "",
        strategy=strategy,
        guide=guide,
        confidence=confidence,
        importance=importance,
        floor=floor,
        keep=keep,
        multiple=multiple,
        seed=seed,
        start=start,
        look=make_look(setup, probe_on, meter, store, probe_seconds) if probe_on else None,
    )


def load_pruned(folder: str, net: Any = None) -> Any:
    """The pruned net that ``prune(...).save(folder)`` or ``joulecast prune --out`` wrote.

    Args:
        folder: Where it is.
        net: The module before it was cut, where it was given as a module or has moved since.
    """
    from joulecast.runtimes.torch.saving import load_pruned as load

    return load(folder, net)


def _take(
    net: Any,
    inputs: Any,
    loss: Any,
    input_shape: Shape | None,
    setup: Setup | None,
    words: dict[str, Any],
) -> Any:
    """The net that is meant, and its setup with the batch that holds for it."""
    from dataclasses import replace

    from joulecast.api.nets import take_net
    from joulecast.records import Setup

    asked = replace(setup or Setup(), **words)
    said = setup is not None or "batch" in words
    found = take_net(net, inputs, loss, asked.batch if said else None, input_shape)
    return found, replace(asked, batch=found.batch)
