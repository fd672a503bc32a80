"""Makes rigs, and has them measure a net or learn a device.

cpu, cuda:0      PyTorch there, under the meter asked for
simulated:7      a simulated world with a meter of its own, on its own clock: for trying out
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from joulecast.api.nets import ResolvedNet, require_torch
from joulecast.devices import detect_device, find_gpu, parse_on
from joulecast.errors import InputError, MissingError
from joulecast.measurer import Measurer, make_measurer
from joulecast.meters import Meter, make_meter
from joulecast.records import OWN_NET, Device, Network, Observation, Profile, Setup, Trial
from joulecast.runtimes.base import Runtime, Step

if TYPE_CHECKING:
    from joulecast.campaign import CampaignResult, Progress
    from joulecast.runtimes.torch.load import LoadedNet
    from joulecast.runtimes.torch.runtime import TorchRuntime

DEFAULT_SECONDS = 600.0


class OwnNetRuntime:
    """PyTorch that runs a user's own net, whatever network a trial describes it as."""

    def __init__(self, runtime: TorchRuntime, loaded: LoadedNet) -> None:
        self.name = runtime.name
        self.device = runtime.device
        self.modes = runtime.modes
        self._runtime = runtime
        self._loaded = loaded

    def prepare(self, trial: Trial) -> Step:
        """The user's net as a step; the trial says how it is trained."""
        net = self._loaded
        return self._runtime.prepare_net(
            net.net, net.inputs, net.loss, trial.setup, trial.execution
        )


def open_rig(
    on: str = "cpu",
    meter: str = "auto",
    *,
    device_name: str = "",
    rounds: int = 3,
    loaded: LoadedNet | None = None,
) -> Measurer:
    """A rig; use it with ``with``.

    Args:
        on: ``cpu``, ``cuda:0`` or ``simulated:SEED``.
        meter: What ``make_meter`` takes.
        device_name: Another name for the device than the one it has.
        rounds: Windows of each trial.
        loaded: A user's own net, to be run in the place of what trials describe.

    Raises:
        InputError: There can be no such device or meter, or several are asked for.
        MissingError: The device, the meter or PyTorch is not there.
    """
    run = uuid.uuid4().hex[:12]
    if _is_simulated(on):
        return _make_simulated(on, meter, device_name, rounds, run)
    device = name_device(detect_device(on), device_name)
    found_meter = find_meter(meter, on)
    return make_measurer(_make_torch(on, device, loaded), found_meter, rounds=rounds, run=run)


def observe_net(found: ResolvedNet, setup: Setup, on: str, meter: str, **rig: Any) -> Observation:
    """Measure a net: the user's own module where there is one, else the network built anew."""
    loaded = found.load() if found.load and not _is_simulated(on) else None
    if loaded is not None and loaded.loss is not None:
        setup = replace(setup, loss="own")
    with open_rig(on, meter, loaded=loaded, **rig) as opened:
        seen = opened.measure(Trial(found.network, setup))
    return seen if loaded is None else replace(seen, source=OWN_NET)


@dataclass(frozen=True)
class Budget:
    """How to learn, and when to stop: at so many points, after so long, or when it is enough."""

    points: int | None = None
    seconds: float | None = None
    uncertainty_share: float = 0.05
    acquisition: str = "target"
    estimator: str = "additive"

    def limit_s(self) -> float | None:
        """Seconds at most; a person who says nothing gets ten minutes."""
        return DEFAULT_SECONDS if self.points is None and self.seconds is None else self.seconds


def learn_net(
    found: ResolvedNet,
    setup: Setup,
    budget: Budget,
    rig: Mapping[str, Any],
    store: str | None,
    on_progress: Callable[[Progress], None] | None,
) -> tuple[CampaignResult, Profile]:
    """Learn what layers like those of a net cost: how it went, and what the device knows now.

    Args:
        found: The net whose widths are the largest that are profiled.
        setup: How it is trained.
        budget: When to stop.
        rig: Arguments of ``open_rig``.
        store: Where what is measured is kept, as it is made.
        on_progress: Is told where it stands.
    """
    from joulecast.campaign import run_campaign
    from joulecast.estimators import find_estimator
    from joulecast.estimators.base import Target
    from joulecast.store import open_store

    target = Target(
        found.network, setup, budget.acquisition, budget.uncertainty_share, networks=found.members
    )
    with open_rig(**rig) as opened, open_store(store) as kept:
        result = run_campaign(
            opened,
            kept,
            find_estimator(budget.estimator),
            target,
            points=budget.points,
            seconds=budget.limit_s(),
            on_progress=on_progress,
        )
        return result, kept.profile(result.profile_key)


def probe_net(
    found: ResolvedNet, setup: Setup, rig: Mapping[str, Any], store: str | None, estimator: str
) -> Profile:
    """Look at the layers of a net that the device has not seen yet: what it knows then."""
    budget = Budget(seconds=DEFAULT_SECONDS, acquisition="probe", estimator=estimator)
    return probe_networks((found.network,), setup, budget, rig, store)


def probe_networks(
    networks: tuple[Network, ...],
    setup: Setup,
    budget: Budget,
    rig: Mapping[str, Any],
    store: str | None,
) -> Profile:
    """Look at the layers of networks that the device has not seen yet: what it knows then."""
    _check_joules(rig, store)
    alone = ResolvedNet(networks[0], setup.batch, members=networks)
    return learn_net(alone, setup, replace(budget, acquisition="probe"), rig, store, None)[1]


def _check_joules(rig: Mapping[str, Any], store: str | None) -> None:
    """Seconds alone say nothing of joules: complain before any are taken."""
    from joulecast.campaign import find_profile_key
    from joulecast.store import open_store

    # Never opened: it only says which device and meter are meant.
    idle = open_rig(**rig)
    with open_store(store, create=False) as kept:
        seen = kept.observations(find_profile_key(idle))
    if not any(one.energy_j for one in seen if one.trial.network.layers):
        raise MissingError(
            f"no energy of any layer was measured on {idle.runtime.device.name} yet: run "
            "`joulecast profile NET` there first"
        )


def find_meter(meter: str, on: str) -> Meter:
    """The meter asked for, watching the device where the load runs."""
    is_gpu = parse_on(on)[1] is not None
    # A GPU is looked for only where a meter has to know which one it is.
    return make_meter(meter, on, find_gpu(on) if is_gpu else None)


def name_device(device: Device, name: str) -> Device:
    """A device under the name that a person gives it."""
    return replace(device, name=name) if name else device


def _is_simulated(on: str) -> bool:
    return on.partition(":")[0] == "simulated"


def _make_torch(on: str, device: Device, loaded: LoadedNet | None) -> Runtime:
    require_torch(f"measuring on {on}")
    from joulecast.runtimes.torch.runtime import TorchRuntime

    runtime = TorchRuntime(on, device)
    return OwnNetRuntime(runtime, loaded) if loaded else runtime


def _make_simulated(on: str, meter: str, device_name: str, rounds: int, run: str) -> Measurer:
    from joulecast.meters.simulated import SimulatedMeter
    from joulecast.runtimes.simulated import SimulatedRuntime
    from joulecast.simulation import make_simulated_device

    _, colon, seed = on.partition(":")
    if not seed.isdigit() and colon:
        raise InputError(f"{on!r} is no simulated device: give one by its seed, like simulated:7")
    if meter != "auto":
        raise InputError(f"a simulated device has a meter of its own: leave --meter {meter} out")
    world = make_simulated_device(int(seed or 0), device_name)
    clock: Any = {"now": world.now, "sleep": world.sleep}
    return make_measurer(
        SimulatedRuntime(world), SimulatedMeter(world), rounds=rounds, run=run, **clock
    )
