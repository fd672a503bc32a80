"""Say what a user should know about how a net was read."""

from __future__ import annotations

from joulecast.records.network import Network, StepTotals
from joulecast.units import format_share

# Operators that are named one by one; the rest is only counted.
_MOST_NAMED = 3


def list_reading_notes(network: Network) -> list[str]:
    """Return notes on how a net was read, and the operators whose cost is not known."""
    totals = network.totals
    if totals is None:
        return []
    return [*totals.notes, *_name_ops_without_rule(totals)]


def _name_ops_without_rule(totals: StepTotals) -> list[str]:
    ops = sorted(totals.ops_without_rule, key=lambda op: (-op[1], op[0]))
    if not ops:
        return []
    named = [
        f"{name} ({count} call{'s' if count > 1 else ''})" for name, count in ops[:_MOST_NAMED]
    ]
    if len(ops) > _MOST_NAMED:
        named.append(f"{len(ops) - _MOST_NAMED} more")
    return [
        f"No cost rule for {', '.join(named)}: FLOPs that they compute are missing, in "
        f"{format_share(totals.uncounted_bytes_share)} of the bytes of a step."
    ]
