"""Read the nets of a table and split them into distinct pieces to measure.

    Entry ──read──▶ Network (stored as a file) ──split──▶ NetPiece: a distinct piece and its nets

Kinds are counted over all nets together: a kind that one net needed is not measured for another.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from nets import Entry

from joulecast.errors import FileError, JoulecastError, NetError
from joulecast.estimators.additive.acquisition import MEASUREMENTS_PER_KIND, read_target
from joulecast.estimators.additive.layers import SetupLayer, set_up_layer
from joulecast.estimators.base import Target
from joulecast.files import read_network, write_network
from joulecast.records import Network, Observation, Setup, Trial
from joulecast.variants import Part, make_isolated_trial, read_isolated_part

PROBE_S = 0.4
MANY_PIECES = 90
# The upper half first: large pieces account for most of a net's energy.
_QUANTILES = (0.75, 0.25)


@dataclass(frozen=True)
class NetPiece:
    """A distinct piece of the table's nets, and how to run it isolated.

    Attributes:
        nets: Names of the nets that contain it.
    """

    piece: SetupLayer
    part: Part
    setup: Setup
    nets: tuple[str, ...]

    def make_trial(self, mode: str) -> Trial:
        """Return a trial of the isolated piece."""
        return make_isolated_trial(self.part, self.setup, mode)


def read_entry(entry: Entry) -> Network:
    """Return the Network of an entry, read on the meta device if possible, else on the CPU.

    Raises:
        NetError: The net cannot be built or read.
    """
    import torch

    from joulecast.runtimes.torch.load import LoadedNet, read_loaded_net

    failure: Exception | None = None
    for place in ("meta", "cpu"):
        try:
            with torch.device(place):
                return read_loaded_net(entry.name, LoadedNet(*entry.build()))
        except Exception as error:  # nets may raise anything
            failure = error
    text = " ".join(str(failure).split())[:300]
    raise NetError(f"{entry.name} cannot be read: {type(failure).__name__}: {text}")


def read_all(
    entries: Iterable[Entry], folder: Path, failures: list[str], fresh: bool
) -> dict[str, Network]:
    """Return networks by name; ``fresh`` reads the modules and writes files, else reads files."""
    found = {}
    folder.mkdir(parents=True, exist_ok=True)
    for entry in entries:
        file = folder / f"{entry.name}.json"
        try:
            if fresh:
                write_network(read_entry(entry), file)
            found[entry.name] = read_network(file)
        except (FileError, JoulecastError) as error:
            failures.append(f"{entry.name}: {error}")
    return found


def list_layers(entries: Iterable[Entry], networks: Mapping[str, Network]) -> dict[str, NetPiece]:
    """Return the distinct pieces of all nets by key."""
    found: dict[str, NetPiece] = {}
    for entry in entries:
        if entry.name not in networks:
            continue
        aim = read_target(Target(networks[entry.name], entry.setup), ())
        for piece in aim.pieces:
            nets = found[piece.key].nets if piece.key in found else ()
            part = aim.parts[piece.key]
            found[piece.key] = NetPiece(piece, part, entry.setup, (*nets, entry.name))
    return found


def describe_nets(
    entries: Iterable[Entry], networks: Mapping[str, Network], pieces_by_key: Mapping[str, NetPiece]
) -> list[list[str]]:
    """Return a row for each net: how completely it is read, and the cost of probing it."""
    rows = []
    for entry in entries:
        if entry.name not in networks:
            continue
        network = networks[entry.name]
        mine = [net_piece for net_piece in pieces_by_key.values() if entry.name in net_piece.nets]
        totals = network.totals
        shares = (
            (totals.unattributed_flops_share, totals.unattributed_bytes_share) if totals else (0, 0)
        )
        setup = entry.setup
        rows.append(
            [
                entry.name,
                f"{setup.batch} {setup.precision} {setup.optimizer}",
                f"{totals.flops / 1e9:,.0f}" if totals else "-",
                *(f"{share:.1%}" for share in shares),
                str(len(network.layers)),
                f"{len(mine)}{' (many)' if len(mine) > MANY_PIECES else ''}",
                str(len({net_piece.piece.label for net_piece in mine})),
                "yes" if network.buildable else "no",
                f"{PROBE_S * len(mine):.0f} s",
            ]
        )
    return rows


READING_COLUMNS = (
    "net",
    "trained",
    ">GFLOP",
    ">unattributed FLOPs",
    ">unattributed bytes",
    ">layers",
    ">pieces",
    ">kinds",
    "buildable",
    ">probes",
)


# ---------------------------------------------------------------------------------------------
# What to measure


def find_piece(observation: Observation, mode: str) -> SetupLayer | None:
    """Return the isolated piece of an observation, or None."""
    how = observation.trial.execution
    part = (
        read_isolated_part(observation.trial) if how.mode == mode and how.stage == "step" else None
    )
    return set_up_layer(part, observation.trial.setup) if part is not None else None


class MeasuredPieces:
    """The isolated pieces that were measured.

    Args:
        mode: How isolated pieces run on the device.

    Attributes:
        energy_keys: Keys of pieces with energy, by kind.
        timed_keys: Keys of pieces with duration.
        issued: Structures with issue time.
    """

    def __init__(self, mode: str, observations: Iterable[Observation] = ()) -> None:
        self.mode = mode
        self.energy_keys: dict[str, set[str]] = {}
        self.timed_keys: set[str] = set()
        self.issued: set[str] = set()
        for one in observations:
            self.add(one)

    def add(self, observation: Observation) -> None:
        """Add an observation."""
        piece = find_piece(observation, self.mode)
        if piece is not None and observation.duration_s is not None:
            self.timed_keys.add(piece.key)
        if piece is not None and observation.energy_j is not None:
            self.energy_keys.setdefault(piece.label, set()).add(piece.key)
        eager_piece = piece if self.mode == "eager" else find_piece(observation, "eager")
        if eager_piece is not None and observation.issue_s is not None:
            self.issued.add(eager_piece.structure)


def find_next_piece(
    pieces_by_key: Mapping[str, NetPiece], measured_pieces: MeasuredPieces, refused: Collection[str]
) -> NetPiece | None:
    """Return the next piece whose energy to measure: of a kind measured less than twice.

    Args:
        pieces_by_key: Pieces of all nets.
        measured_pieces: Pieces that were measured.
        refused: Keys of pieces that the device refused.
    """
    groups: dict[str, list[NetPiece]] = {}
    for net_piece in pieces_by_key.values():
        groups.setdefault(net_piece.piece.label, []).append(net_piece)
    for turn in range(MEASUREMENTS_PER_KIND):
        for label in sorted(groups):
            done = measured_pieces.energy_keys.get(label, set())
            left = [p for p in groups[label] if p.piece.key not in done.union(refused)]
            if len(done) <= turn and left:
                left.sort(key=lambda p: (p.piece.size_bytes, p.piece.flops, p.piece.key))
                return left[round(_QUANTILES[turn] * (len(left) - 1))]
    return None


def list_probes(
    pieces_by_key: Mapping[str, NetPiece], measured_pieces: MeasuredPieces
) -> list[NetPiece]:
    """Return the pieces to time, largest first, so that an interruption loses the smallest."""
    left = [
        net_piece
        for key, net_piece in pieces_by_key.items()
        if key not in measured_pieces.timed_keys
    ]
    return sorted(left, key=lambda p: (-p.piece.size_bytes, p.piece.key))


def list_host_probes(
    pieces_by_key: Mapping[str, NetPiece], measured_pieces: MeasuredPieces
) -> list[NetPiece]:
    """Return the smallest piece of every structure without issue time."""
    chosen: dict[str, NetPiece] = {}
    for net_piece in sorted(
        pieces_by_key.values(), key=lambda p: (p.piece.size_bytes, p.piece.key)
    ):
        if net_piece.piece.structure not in measured_pieces.issued:
            chosen.setdefault(net_piece.piece.structure, net_piece)
    return list(chosen.values())
