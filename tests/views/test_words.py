"""Numbers, setups, tables and fronts as people read them."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecast.cli.commands import write_json
from joulecast.records import Setup
from joulecast.system.errors import FileError
from joulecast.system.units import format_duration, format_energy, format_interval
from joulecast.views.fronts import find_front
from joulecast.views.report import Report, make_table
from joulecast.views.terminal import make_console, print_report
from joulecast.views.words import (
    begin_sentence,
    describe_setup,
    explain_not_included,
    format_with_interval,
    list_setup_options,
    make_bar,
    plural,
    shorten,
    shorten_path,
)

INFERENCE = Setup(batch=1, phase="inference")
NPU = replace(INFERENCE, threads=2, processor="NPU", cuda_graphs=True, precision="int8")
ENERGY = (2.07, (1.87, 2.29), 0.95)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        # A shared unit is written once.
        (format_interval((1.87, 2.29), format_energy), "1.87–2.29 J"),
        (format_interval((0.9, 1.1), format_energy), "900 mJ – 1.10 J"),
        (format_interval((70.0, 200.0), format_duration), "1 min 10 s – 3 min 20 s"),
        (format_with_interval(*ENERGY, "measured"), "2.07 J (95 % interval 1.87–2.29 J)"),
        (
            format_with_interval(*ENERGY, "simulated"),
            "2.07 J (simulated, 95 % interval 1.87–2.29 J)",
        ),
        (plural(1, "net"), "1 net"),
        (plural(1200, "net"), "1,200 nets"),
        (shorten("abcdef", 4), "abc…"),
        (shorten("abc", 4), "abc"),
        (shorten_path("stages.0.layer.1.conv", 14), "….layer.1.conv"),
        (shorten_path("layer.1", 14), "layer.1"),
        (make_bar(0.5, 4), "██"),
        (make_bar(0.0), ""),
        (begin_sentence(Setup()), "A step"),
        (begin_sentence(INFERENCE), "An inference"),
        (begin_sentence(replace(INFERENCE, batch=8)), "An inference of 8 samples"),
        (explain_not_included(INFERENCE), "Not included: loading and preparing inputs."),
    ],
)
def test_phrases(said, expected):
    assert said == expected


@pytest.mark.parametrize(
    ("setup", "words", "options"),
    [
        (Setup(), "batch 32, sgd, fp32", "--batch 32"),
        (
            Setup(8, loss="mse", optimizer="adam"),
            "batch 8, adam, fp32, mse loss",
            "--batch 8 --optimizer adam --loss mse",
        ),
        # Inference has no loss, whatever the setup says.
        (replace(INFERENCE, loss="own"), "batch 1, inference, fp32", "--batch 1 --inference"),
        (
            NPU,
            "batch 1, inference, int8, 2 threads, NPU, CUDA graphs",
            "--batch 1 --precision int8 --threads 2 --processor NPU --cuda-graphs --inference",
        ),
    ],
)
def test_setup_in_words_and_options(setup, words, options):
    assert (describe_setup(setup), list_setup_options(setup)) == (words, options)


def test_tables_shorten_text_but_not_numbers(monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    stream = io.StringIO()
    table = make_table(("layer", ">energy"), [("a" * 40, "123456789 J")])
    print_report(Report("", (table,)), make_console(stream))
    lines = stream.getvalue().splitlines()
    assert max(map(len, lines)) <= 30 and "123456789 J" in lines[2] and "…" in lines[2]


NUMBERS = st.integers(0, 9)


@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=12), st.randoms())
def test_front_is_not_dominated_in_any_order(pairs, random):
    marked = dict(zip(pairs, find_front(pairs), strict=True))
    for pair, is_best in marked.items():
        dominated = any(a <= pair[0] and b <= pair[1] and (a, b) != pair for a, b in pairs)
        assert is_best != dominated
    random.shuffle(pairs)
    assert marked == dict(zip(pairs, find_front(pairs), strict=True))


def test_json_that_cannot_be_written_is_refused():
    with pytest.raises(FileError, match="give another --out"):
        write_json("/proc/no/where.json", {})
