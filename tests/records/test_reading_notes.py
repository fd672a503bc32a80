"""Notes on how a net was read."""

from joulecast.records import Network, StepTotals
from joulecast.records.network import list_reading_notes


def test_network_that_was_not_read_has_no_notes() -> None:
    assert list_reading_notes(Network()) == []
    assert list_reading_notes(Network(totals=StepTotals(1.0, 1.0, 1))) == []


def test_operators_without_a_rule_are_named_with_their_calls() -> None:
    ops = (("aten::foo", 3), ("lib::bar", 1), ("lib::baz", 2), ("lib::far", 9), ("lib::few", 1))
    totals = StepTotals(
        1.0, 1.0, 1, ops_without_rule=ops, uncounted_bytes_share=0.25, notes=("Frozen.",)
    )
    first, second = list_reading_notes(Network(totals=totals))
    assert first == "Frozen."
    assert second == (
        "No cost rule for lib::far (9 calls), aten::foo (3 calls), lib::baz (2 calls), 2 more: "
        "FLOPs that they compute are missing, in 25.0 % of the bytes of a step."
    )
