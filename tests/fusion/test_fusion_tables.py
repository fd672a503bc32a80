"""Test how patterns are parsed and which table a runtime has."""

import pytest

from joulecast.errors import InputError
from joulecast.fusion import FUSION_TABLES, FusionTable, find_fusion_table
from joulecast.records import Setup


@pytest.mark.parametrize(
    ("runtime", "name"),
    [
        ("torch-2.13.0", "torch"),
        ("torch_compile-2.13.0", "torch_compile"),
        ("onnxruntime-1.31.1", "onnxruntime"),
        ("mnn-3.0", "tflite"),
        ("", "torch"),
        ("unheard-of-1", "torch"),
    ],
)
def test_runtimes_have_tables(runtime, name):
    assert find_fusion_table(runtime, Setup()) is FUSION_TABLES[name]


def test_compiled_setups_have_a_table_of_their_own():
    compiled = Setup(compiled=True)
    assert find_fusion_table("torch-2.13.0", compiled) is FUSION_TABLES["torch_compile"]


def test_pattern_words_are_parsed():
    table = FusionTable("mine", (), ("se = fc|conv relu? @pointwise*",), frozenset())
    (rule,) = table.rules
    assert rule.kind == "se"
    assert [(word.least, word.most) for word in rule.words] == [(1, 1), (0, 1), (0, 200)]
    assert rule.words[0].names == {"fc", "conv"}
    assert rule.words[2].any_pointwise


def test_empty_name_in_a_pattern_is_refused():
    with pytest.raises(InputError, match="extra"):
        FusionTable("mine", (), ("fc||conv",), frozenset()).rules  # noqa: B018


def test_every_table_parses_and_says_where_it_comes_from():
    for table in FUSION_TABLES.values():
        assert table.rules and table.note
