"""What people read about text generation."""

from joulecast.cli.print_generation import print_generation
from joulecast.records import Setup
from joulecast.uses.generate import GenerationEstimate, TokenEstimate


def make_estimate(**changes):
    token = TokenEstimate(513, 0.6, (0.5, 0.7), 0.0027)
    values = {
        "batch": 1,
        "prompt_tokens": 512,
        "new_tokens": 1,
        "prompt_token_j": 0.004,
        "prompt_token_interval_j": (0.003, 0.005),
        "prefill_s": 0.005,
        "decode": (token,),
        "request_j": 36.0,
        "request_interval_j": (30.0, 40.0),
        "request_s": 0.3,
        "tokens_per_s": 370.0,
        "level": 0.95,
        "device": "nvidia-h200",
        "provenance": "measured",
        "covers": "gpu",
        "estimator": "additive",
    }
    return GenerationEstimate(**{**values, **changes})


def print_text(capsys, **changes):
    print_generation("model.py:make", Setup(1, phase="inference"), make_estimate(**changes))
    return " ".join(capsys.readouterr().out.split())


def test_energies_have_intervals_and_watt_hours(capsys):
    text = print_text(capsys)
    assert "36.0 J (95 % interval 30.0–40.0 J)" in text
    assert "10.0 Wh per 1,000 requests · 300 ms · 370 generated tokens/s" in text
    assert "Token 513 600 mJ 500–700 mJ 2.70 ms" in text
    assert "Provenance: measured by a meter; the meter covers gpu." in text
    assert "Sampling and tokenisation are not included." in text


def test_modelled_joules_and_several_sequences_are_named(capsys):
    text = print_text(capsys, provenance="modelled", batch=8)
    assert "modelled" in text
    assert "for 8 sequences at once" in text
