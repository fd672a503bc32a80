"""Energy budgets and run lengths."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecast.features.budgets import EnergyBudget, RunLength, parse_budget
from joulecast.features.channel_search import parse_pruning_budget
from joulecast.system.errors import InputError

RUN, STEP = RunLength(10), RunLength()


@pytest.mark.parametrize(
    ("text", "length", "expected"),
    [
        ("0.5Wh", RUN, EnergyBudget(1800.0, per="run")),
        ("5J", RUN, EnergyBudget(5.0, per="run")),
        ("5J", STEP, EnergyBudget(5.0, per="step")),
        ("5 mJ", STEP, EnergyBudget(0.005, per="step")),
        ("5J/step", RUN, EnergyBudget(5.0, per="step")),
        ("2Wh / step", STEP, EnergyBudget(7200.0, per="step")),
        ("3kJ/run", RunLength(epochs=2, samples=64), EnergyBudget(3000.0, per="run")),
        ("50%", RUN, EnergyBudget(share=0.5, per="run")),
        ("150 %", STEP, EnergyBudget(share=1.5, per="step")),
        ("2Wh", RunLength(1), EnergyBudget(7200.0, per="run")),
    ],
)
def test_parse_budget(text, length, expected):
    assert parse_budget(text, length) == expected


@pytest.mark.parametrize("text", ["5", "5J/day", "5J/", "0J", "0%", "x%", "-3%", "1e999%", "much"])
def test_parse_budget_refuses_other_text_in_one_line(text):
    for parse in (lambda: parse_budget(text, RUN), lambda: parse_pruning_budget(text)):
        with pytest.raises(InputError, match=r"budget.*like") as caught:
            parse()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["2Wh", "300mWh", "3kJ", "1 MJ", "5J/run"])
def test_energy_of_a_run_needs_the_length_of_the_run(text):
    """A single step does not take watt-hours."""
    amount = text.partition("/")[0]
    for parse in (lambda: parse_budget(text), lambda: parse_pruning_budget(text)):
        with pytest.raises(InputError, match=rf"give steps.*{amount}/step"):
            parse()
    assert parse_budget(f"{amount}/step").per == "step"


@given(st.floats(0.01, 1e4), st.sampled_from(["J", "kJ", "Wh", "mWh", "J/step", "Wh/run", "%"]))
def test_pruning_and_searching_parse_budgets_alike(amount, unit):
    """Pruning converts the budget of a search to one step."""
    text = f"{amount!r}{unit}"
    found = parse_budget(text, RunLength(20))
    if found.share is not None and found.share >= 1:
        with pytest.raises(InputError, match="less than 100 %"):
            parse_pruning_budget(text, RunLength(20))
        return
    step = parse_pruning_budget(text, RunLength(20))
    assert step == found.to_step(20) and step.per == "step" and step.text == text
    runs = 20 if found.per == "run" and found.share is None else 1
    assert runs * step.limit(3.0) == pytest.approx(found.limit(3.0))


@given(st.integers(1, 50), st.integers(1, 1000), st.integers(1, 300))
def test_epoch_covers_every_sample(epochs, samples, batch):
    steps = RunLength(epochs=epochs, samples=samples).count_steps(batch)
    assert steps % epochs == 0 and steps * batch >= epochs * samples > (steps - epochs) * batch


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        *((RunLength, one) for one in ((None, 3), (None, None, 3), (0,), (10**14,), (3, 1, 8))),
        *((EnergyBudget, one) for one in ((), (1.0, 0.5), (math.nan,), (None, 0.5, "day"))),
    ],
)
def test_impossible_budgets_and_lengths_are_refused(kind, wrong):
    with pytest.raises(InputError):
        kind(*wrong)


def test_budgets_and_lengths_are_limited_and_written_as_json():
    assert RunLength(7).count_steps(3) == 7 and RunLength(1).is_run
    assert RunLength().count_steps(3) == 1 and not RunLength().is_run
    with pytest.raises(InputError, match="at most 1,000,000,000,000"):
        RunLength(epochs=10**9, samples=10**9).count_steps(32)
    assert RunLength(7).to_dict() == {"steps": 7, "epochs": None, "samples": None}
    assert parse_budget("5J", RUN).to_dict() == {"limit_j": 5.0, "share": None, "per": "run"}
