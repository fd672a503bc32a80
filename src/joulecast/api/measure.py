"""Measure one training step, or one inference, of a net."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from joulecast.api.measurers import open_any_measurer, runs_own_net
from joulecast.api.nets import NetRequest, ResolvedNet, Shape
from joulecast.api.options import MeasureOptions, NetOptions, split_options
from joulecast.records import OWN_NET, Observation, Setup, Trial


def measure(
    net: Any,
    inputs: Any = None,
    *,
    setup: Setup | None = None,
    input_shape: Shape | None = None,
    store: str | None = None,
    **options: Any,
) -> Observation:
    """Train a net under a meter and return what one step took.

    With ``phase="inference"`` the net is run, not trained: a step is one forward pass.

    Args:
        net: A name, a Network, or a module with ``inputs``, whose weights will be trained.
        inputs: For a module, what it is called on.
        setup: How the net is trained or run.
        input_shape: For a name, the shape of one sample where it differs from the usual one.
        store: Path or URL of a store to add the observation to; by default it is only returned.
        options: Fields of ``Setup`` (``batch=128, accumulate=4, compiled=True``);
            ``checkpoint=True`` puts repeated blocks under activation checkpointing, on a copy of a
            module; and fields of ``MeasureOptions``: ``on``, ``meter``, ``rounds``,
            ``device_name``, ``warmup``, ``runs``. For a module, ``loss`` may be a callable from its
            output to a scalar.
    """
    setup_options, changes, measuring = split_options(
        measure, options, Setup, NetOptions, MeasureOptions
    )
    request = NetRequest(net, inputs, setup, input_shape, setup_options, **changes)
    if store is not None:
        from joulecast.store import check_place

        check_place(store)
    observation = measure_net(*request.resolve(), MeasureOptions(**measuring))
    if store is not None:
        save_observation(observation, store)
    return observation


def measure_net(net: ResolvedNet, setup: Setup, options: MeasureOptions) -> Observation:
    """Measure the user's own module or file where there is one, else the network built anew."""
    loaded = net.load() if net.load and runs_own_net(options.on, net.form) else None
    if loaded is not None and loaded.loss is not None and setup.phase == "train":
        setup = replace(setup, loss="own")
    with open_any_measurer(options, loaded, allows_later=True) as measurer:
        observation = measurer.measure(Trial(net.network, setup))
        if measurer.meter.is_recorder:
            # Imports what fits estimators, which other meters do not need.
            from joulecast.campaign.trial_log import drop_energy

            observation = drop_energy(observation)
    return observation if loaded is None else replace(observation, source=OWN_NET)


def save_observation(observation: Observation, store: str | None = None) -> str:
    """Add an observation to the store and return where the store is."""
    from joulecast.store import open_store

    with open_store(store) as opened:
        opened.add_observation(observation)
        return str(opened.place)
