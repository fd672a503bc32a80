"""Print the energy of layers: the costliest first, equal blocks as one row.

layer        kind          count   energy   share
h.0–23       block of 9      ×24   48.6 J  70.5 %  ███████████▎
  fc         linear          ×24   17.5 J  25.4 %  ████
  other 8 layers                   31.1 J  45.1 %  ███████▎
lm_head      linear                20.3 J  29.4 %  ████▊
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulecast.cli.terminal import make_bar, print_table, shorten_path
from joulecast.records import BlockEstimate, Estimate, LayerEstimate
from joulecast.units import format_energy

if TYPE_CHECKING:
    from rich.console import Console

TOP_ROWS = 8
_TOP_INNER_ROWS = 5
# Blocks with less of the energy are one row, without the layers in them.
_MIN_OPENED_SHARE = 0.25
# Rows with less are summed, as long as there are several.
_MIN_ROW_SHARE = 0.001
_BAR_WIDTH = 16
_NAME_WIDTH = 26
_SMALLEST_SHARE = 0.0005
_INDENT = "  "


@dataclass(frozen=True)
class LayerRow:
    """A row of the table.

    Attributes:
        count: How often a step runs it: calls of a layer, or equal blocks.
        seen: Whether everything in it was measured on this device.
        inner: Rows of the layers of a block.
    """

    name: str
    kind: str
    energy_j: float
    count: int = 1
    seen: bool = True
    inner: tuple[LayerRow, ...] = ()


def print_layers(console: Console, estimate: Estimate, every: bool = False) -> None:
    """Print the energy of layers.

    Args:
        console: Where to print.
        estimate: The estimate.
        every: Whether to print every layer in call order, instead of the costliest rows.
    """
    rows = [_make_row(layer) for layer in estimate.layers] if every else list_layer_rows(estimate)
    cells: list[Sequence[str]] = []
    for row in rows:
        cells.append(_format_row(row, estimate))
        if row.energy_j >= _MIN_OPENED_SHARE * estimate.energy_j:
            cells += [_format_row(one, estimate, _INDENT) for one in row.inner]
    columns = ["layer", "kind", ">count", ">energy", ">share", " "]
    if not any(cell[2] for cell in cells):
        columns, cells = _drop_count(columns), [_drop_count(cell) for cell in cells]
    print_table(console, columns, cells)


def list_layer_rows(estimate: Estimate) -> list[LayerRow]:
    """Return the rows that take most energy, and the rest as one.

    Blocks are rows if some of them are equal; else their layers are.
    """
    blocks = estimate.blocks if any(block.count > 1 for block in estimate.blocks) else ()
    inside = {
        start + at for block in blocks for start in block.starts for at in range(block.layer_count)
    }
    outside = [layer for at, layer in enumerate(estimate.layers) if at not in inside]
    rows = [_make_block_row(block, estimate.layers) for block in blocks]
    rows += map(_make_row, outside)
    return _merge_small_rows(rows, TOP_ROWS, _MIN_ROW_SHARE * estimate.energy_j)


def _make_row(layer: LayerEstimate) -> LayerRow:
    return LayerRow(layer.name, layer.kind, layer.energy_j, layer.calls, layer.seen)


def _make_block_row(block: BlockEstimate, layers: Sequence[LayerEstimate]) -> LayerRow:
    """Return the row of equal blocks; a row inside is the sum of one layer over all of them."""
    inner = []
    for at in range(block.layer_count):
        equal = [layers[start + at] for start in block.starts]
        inner.append(
            LayerRow(
                equal[0].name,
                equal[0].kind,
                sum(layer.energy_j for layer in equal),
                sum(layer.calls for layer in equal),
                all(layer.seen for layer in equal),
            )
        )
    named = [
        LayerRow(name, row.kind, row.energy_j, row.count, row.seen)
        for name, row in zip(_shorten_names([row.name for row in inner]), inner, strict=True)
    ]
    return LayerRow(
        block.name,
        f"block of {block.layer_count}",
        block.energy_j,
        block.count,
        all(row.seen for row in inner),
        tuple(_merge_small_rows(named, _TOP_INNER_ROWS)),
    )


def _shorten_names(names: Sequence[str]) -> list[str]:
    """Return names without the dotted path that all of them begin with."""
    paths = [name.split(".") for name in names]
    depth = 0
    while all(len(path) > depth + 1 for path in paths) and len({p[depth] for p in paths}) == 1:
        depth += 1
    return [".".join(path[depth:]) for path in paths]


def _merge_small_rows(rows: Sequence[LayerRow], top: int, least_j: float = 0.0) -> list[LayerRow]:
    """Return the rows that take most energy, and the others as one row.

    Args:
        rows: All rows.
        top: Largest number of rows to keep.
        least_j: Energy of the smallest row to keep.
    """
    ranked = sorted(rows, key=lambda row: -row.energy_j)
    top = min(top, sum(row.energy_j >= least_j for row in ranked))
    rest = ranked[top:]
    if len(rest) < 2:
        return ranked
    total_j = sum(row.energy_j for row in rest)
    count = sum(row.count if row.inner else 1 for row in rest)
    noun = "layers" if not any(row.inner for row in rest) else "layers and blocks"
    merged = LayerRow(f"other {count} {noun}", "", total_j, seen=all(row.seen for row in rest))
    return [*ranked[:top], merged]


def _format_row(row: LayerRow, estimate: Estimate, indent: str = "") -> tuple[str, ...]:
    share = row.energy_j / estimate.energy_j if estimate.energy_j else 0.0
    return (
        indent + shorten_path(row.name, _NAME_WIDTH - len(indent)),
        row.kind,
        f"×{row.count}" if row.count > 1 else "",
        ("" if row.seen else "about ") + format_energy(row.energy_j),
        _format_percent(share),
        make_bar(share, _BAR_WIDTH),
    )


def _format_percent(share: float) -> str:
    """Return a share with one decimal, so that those of a column are aligned."""
    return f"{100 * share:.1f} %" if share >= _SMALLEST_SHARE or not share else "<0.1 %"


def _drop_count(cells: Sequence[str]) -> list[str]:
    return [*cells[:2], *cells[3:]]
