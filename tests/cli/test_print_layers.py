"""The table of layers: costliest first, equal blocks as one row, readable at 80 columns."""

from dataclasses import replace

import pytest

from joulecast.cli.print_layers import list_layer_rows, print_layers
from joulecast.cli.terminal import make_console
from joulecast.records import BlockEstimate, Estimate, LayerEstimate

PARTS = {"attn.qkv": 3.0, "attn.out": 1.0, "mlp.up": 4.0, "mlp.down": 4.0, "norm": 0.5, "add": 0.3}
PARTS["cast"] = 0.2
COUNT = 48
BLOCK_J = sum(PARTS.values())


def make_estimate(*more: LayerEstimate) -> Estimate:
    layers = [LayerEstimate("wte", "embedding", 1.0)]
    for at in range(COUNT):
        layers += [
            LayerEstimate(f"transformer.h.{at}.{name}", "linear", energy_j, seen=name != "norm")
            for name, energy_j in PARTS.items()
        ]
    layers += [LayerEstimate("head", "linear", 90.0, calls=2), *more]
    starts = tuple(1 + at * len(PARTS) for at in range(COUNT))
    block = BlockEstimate("transformer.h.0–47", COUNT, len(PARTS), COUNT * BLOCK_J, starts)
    energy_j = sum(layer.energy_j for layer in layers)
    return Estimate(
        energy_j=energy_j,
        interval_j=(0.5 * energy_j, 2.0 * energy_j),
        level=0.95,
        duration_s=0.1,
        peak_memory_bytes=1,
        layers=tuple(layers),
        unseen_share=0.0,
        provenance="measured",
        covers="gpu",
        device="board",
        estimator="additive",
        blocks=(block,),
    )


def print_lines(capsys, monkeypatch, estimate: Estimate, every: bool = False) -> list[str]:
    monkeypatch.setenv("COLUMNS", "80")
    print_layers(make_console(), estimate, every)
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_equal_blocks_are_one_row_with_a_count(capsys, monkeypatch):
    lines = print_lines(capsys, monkeypatch, make_estimate())
    assert max(map(len, lines)) <= 80 and len(lines) < 16
    first = lines[2].split()
    assert first[:5] == ["transformer.h.0–47", "block", "of", "7", "×48"]
    assert f"about {COUNT * BLOCK_J:.0f} J" in lines[2]
    assert lines[3].split()[:3] == ["mlp.up", "linear", "×48"] and lines[3].startswith("  ")
    assert "192 J" in lines[3]
    assert any(line.startswith("  other 2 layers") for line in lines)
    head = next(line for line in lines if line.startswith("head"))
    assert head.split()[1:3] == ["linear", "×2"]


def test_rows_add_up_to_the_whole():
    estimate = make_estimate()
    rows = list_layer_rows(estimate)
    assert sum(row.energy_j for row in rows) == pytest.approx(estimate.energy_j)
    assert sum(row.energy_j for row in rows[0].inner) == pytest.approx(rows[0].energy_j)
    assert [row.seen for row in rows] == [False, True, True]


def test_small_blocks_are_not_opened(capsys, monkeypatch):
    estimate = make_estimate(LayerEstimate("huge", "linear", 1e4))
    lines = print_lines(capsys, monkeypatch, estimate)
    assert not any(line.startswith("  ") for line in lines[2:])


def test_small_layers_are_one_row():
    few = [LayerEstimate(f"tiny{at}", "linear", 1e-3) for at in range(30)]
    rows = list_layer_rows(make_estimate(*few))
    assert rows[-1].name == "other 30 layers"
    assert rows[-1].energy_j == pytest.approx(0.03)


def test_blocks_among_the_rest_count_one_by_one():
    large = [LayerEstimate(f"large{at}", "linear", 1e4) for at in range(9)]
    rows = list_layer_rows(make_estimate(*large))
    assert rows[-1].name == f"other {COUNT + 3} layers and blocks"


def test_every_layer_is_printed_in_call_order(capsys, monkeypatch):
    estimate = make_estimate()
    lines = print_lines(capsys, monkeypatch, estimate, every=True)
    named = [line.split()[0] for line in lines[2:-1]]
    assert named == [layer.name for layer in estimate.layers]


def test_there_is_no_count_where_nothing_repeats(capsys, monkeypatch):
    layers = (LayerEstimate("a", "conv2d", 3.0), LayerEstimate("b", "linear", 1.0))
    plain = replace(make_estimate(), layers=layers, blocks=(), energy_j=4.0)
    lines = print_lines(capsys, monkeypatch, plain)
    assert lines[0].split() == ["layer", "kind", "energy", "share"]
    assert lines[2].split()[:6] == ["a", "conv2d", "3.00", "J", "75.0", "%"]


def test_blocks_that_are_all_different_are_shown_as_layers():
    estimate = make_estimate()
    single = replace(estimate.blocks[0], count=1, starts=(1,))
    rows = list_layer_rows(replace(estimate, blocks=(single,)))
    assert not any(row.inner for row in rows)


def test_long_names_keep_their_end(capsys, monkeypatch):
    name = "encoder.layers.2.blocks.17.attention.output.dense"
    estimate = make_estimate(LayerEstimate(name, "linear", 500.0))
    lines = print_lines(capsys, monkeypatch, estimate)
    assert any(line.startswith("….attention.output.dense ") for line in lines)
