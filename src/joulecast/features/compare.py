"""Rank devices and setups by the energy and duration of a sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from joulecast.features.nets import NetRequest, ResolvedNet, Shape
from joulecast.features.options import EstimateOptions, GpuCounts, NetOptions, split_options
from joulecast.features.profiles import find_profiles
from joulecast.records import Profile, Setup

if TYPE_CHECKING:
    from joulecast.features.option_values import DeviceLike
    from joulecast.uses.compare import Comparison


@dataclass(frozen=True)
class SetupGrid:
    """Setups to compare: every combination of batch sizes, precisions, optimizers and threads.

    Attributes:
        batch: Batch sizes; the net's own where empty, and 1 for inference.
        accumulate: Numbers of batches per update.
        compiled: Whether the net is compiled; ``(False, True)`` compares both.
    """

    batch: tuple[int, ...] = ()
    precision: tuple[str, ...] = ("fp32",)
    optimizer: tuple[str, ...] = ("sgd",)
    phase: str = "train"
    loss: str = "cross_entropy"
    threads: tuple[int, ...] = (0,)
    processor: tuple[str, ...] = ("",)
    cuda_graphs: bool = False
    accumulate: tuple[int, ...] = (1,)
    compiled: tuple[bool, ...] = (False,)

    def list_setups(self, own_batch: int) -> list[Setup]:
        """Return every combination."""
        fixed: dict[str, Any] = {
            "phase": self.phase,
            "loss": self.loss,
            "cuda_graphs": self.cuda_graphs,
        }
        varied: dict[str, tuple[Any, ...]] = {
            "batch": self.batch or (own_batch,),
            "precision": self.precision,
            "optimizer": self.optimizer,
            "threads": self.threads,
            "processor": self.processor,
            "accumulate": self.accumulate,
            "compiled": self.compiled,
        }
        rows = product(*varied.values())
        return [Setup(**fixed, **dict(zip(varied, row, strict=True))) for row in rows]


def compare(
    net: Any,
    inputs: Any = None,
    *,
    devices: DeviceLike | Profile | Sequence[DeviceLike | Profile] = (),
    setups: Sequence[Setup] = (),
    input_shape: Shape | None = None,
    **options: Any,
) -> Comparison:
    """Rank devices and setups by the energy and duration of one sample of a net.

    Args:
        net: A name, a Network, or a module with ``inputs``.
        inputs: For a module, what it is called on.
        devices: Devices (see ``load_profile``), or profiles; ``all`` for every profile and every
            other device of the catalogue; this machine by default.
        setups: How the net may be trained or run; instead of fields of ``SetupGrid``.
        input_shape: For a name, the shape of one sample where it differs from the usual one.
        options: Fields of ``SetupGrid`` (``batch=(8, 16), precision=("fp32", "bf16")``) and of
            ``EstimateOptions``: ``estimator``, ``level``, ``store``; ``checkpoint=True`` puts
            repeated blocks under activation checkpointing. For a module, ``loss`` may be
            a callable from its output to a scalar. ``phase="inference"`` compares inference;
            ``gpus=(1, 4), parallel="data"`` compares numbers of GPUs that train together.
    """
    grid, changes, estimating, gpus = split_options(
        compare, options, SetupGrid, NetOptions, EstimateOptions, GpuCounts
    )
    own_loss = {"loss": grid.pop("loss")} if callable(grid.get("loss")) else {}
    setup_grid = SetupGrid(**grid)
    net_options = {"phase": setup_grid.phase, **own_loss}
    request = NetRequest(net, inputs, input_shape=input_shape, setup_options=net_options, **changes)
    resolved = request.resolve()[0]
    wanted = [*setups] or setup_grid.list_setups(resolved.batch)
    how = EstimateOptions(**estimating)
    counts = GpuCounts(**gpus)
    return compare_setups(resolved, find_profiles(devices, how.store), wanted, how, counts)


def compare_setups(
    net: ResolvedNet,
    profiles: dict[str, Profile | str],
    setups: Sequence[Setup],
    options: EstimateOptions,
    gpus: GpuCounts | None = None,
) -> Comparison:
    """Rank the combinations of profiles, setups and numbers of GPUs."""
    from joulecast.uses.compare import compare as rank_combinations

    return rank_combinations(net.network, profiles, setups, options.estimator, options.level, gpus)
