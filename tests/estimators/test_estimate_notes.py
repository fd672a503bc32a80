"""Notes say what limits an estimate."""

from dataclasses import replace

from joulecast.estimators.fitted_profile import explain_memory, list_estimate_notes
from joulecast.families import make_family
from joulecast.records import Estimate, StepTotals

GIB = 2**30
NETWORK = make_family("lenet5")
ESTIMATE = Estimate(
    energy_j=2.0,
    interval_j=(1.0, 4.0),
    level=0.95,
    duration_s=0.1,
    peak_memory_bytes=10 * GIB,
    layers=(),
    unseen_share=0.0,
    provenance="measured",
    covers="gpu",
    device="board",
    estimator="additive",
    device_memory_bytes=80 * GIB,
)


def test_a_step_that_fits_needs_no_note():
    assert list_estimate_notes(ESTIMATE, NETWORK) == ()
    assert explain_memory(replace(ESTIMATE, device_memory_bytes=0)) == []


def test_a_step_larger_than_the_memory_would_not_fit():
    (note,) = explain_memory(replace(ESTIMATE, peak_memory_bytes=96 * GIB))
    assert note.startswith("It would not fit: it needs about 96.0 GiB of memory, but board has")
    assert "80.0 GiB" in note


def test_a_step_that_nearly_fills_the_memory_may_not_fit():
    (note,) = explain_memory(replace(ESTIMATE, peak_memory_bytes=79 * GIB))
    assert note.startswith("It may not fit")


def test_notes_come_from_memory_prediction_and_reading():
    totals = StepTotals(
        1.0,
        1.0,
        1,
        unattributed_flops_share=0.25,
        ops_without_rule=(("lib::scan", 2),),
        uncounted_bytes_share=0.5,
        notes=("Read with two samples.",),
    )
    large = replace(ESTIMATE, peak_memory_bytes=96 * GIB)
    read = replace(NETWORK, totals=totals)
    notes = list_estimate_notes(large, read, ("Extrapolated 4x.",))
    assert [note.split()[0] for note in notes] == ["It", "Extrapolated", "25.0", "Read", "No"]
    assert "25.0 % of the FLOPs belong to no layer" in notes[2]
    assert "lib::scan (2 calls)" in notes[-1]
