"""Requests as sums of a prompt and of tokens at growing contexts."""

from dataclasses import replace

import numpy as np
import pytest

from joulecast.errors import InputError
from joulecast.estimators import fit_profile
from joulecast.families import make_family
from joulecast.features.profiles import load_profile
from joulecast.generation import READING_TOKENS, make_decode_network, make_prefill_network
from joulecast.records import Setup
from joulecast.uses.generate import GenerationRequest, estimate_generation
from joulecast.uses.generate.generation_estimate import _weigh_contexts

NETWORK = make_family("transformer", READING_TOKENS[:1])
SETUP = Setup(4, phase="inference", precision="bf16", cuda_graphs=True)


@pytest.fixture(scope="module")
def profile():
    return fit_profile(load_profile("nvidia-h200"))


def test_request_is_a_prompt_and_all_its_tokens(profile):
    request = GenerationRequest(prompt_tokens=60, new_tokens=12)
    found = estimate_generation(profile, NETWORK, SETUP, request)
    networks = [make_prefill_network(NETWORK, 60)]
    networks += [make_decode_network(NETWORK, 60 + number) for number in range(1, 13)]
    single = profile.estimate(networks, SETUP)
    assert found.request_j == pytest.approx(single.energy_j.sum() / 4, rel=0.01)
    assert found.prompt_token_j == pytest.approx(single[0].energy_j / 4 / 60)
    assert found.decode[0].token_j == pytest.approx(single[1].energy_j / 4)
    assert found.decode[-1].context == 72
    decode_s = sum(one.duration_s for one in single[1:])
    assert found.request_s == pytest.approx(single[0].duration_s + decode_s, rel=0.01)
    assert found.tokens_per_s == pytest.approx(4 * 12 / decode_s, rel=0.01)


def test_errors_of_tokens_do_not_average_out(profile):
    """They are estimated from the same layers, so that they err together."""
    found = estimate_generation(profile, NETWORK, SETUP, GenerationRequest(60, 500))
    low_j, high_j = found.request_interval_j
    token_low_j, token_high_j = found.decode[0].token_interval_j
    width = np.log(high_j / low_j) / np.log(token_high_j / token_low_j)
    assert 0.7 < width < 1.1


@pytest.mark.parametrize("cuda_graphs", [False, True])
def test_waiting_for_the_host_is_warned_of(profile, cuda_graphs):
    setup = replace(SETUP, batch=1, cuda_graphs=cuda_graphs)
    notes = estimate_generation(profile, NETWORK, setup, GenerationRequest(60, 2)).notes
    assert any("wait for the host" in note for note in notes) == (not cuda_graphs)


@pytest.mark.parametrize("contexts", [(5,), (5, 6), (10, 20, 40)])
def test_weights_count_every_token(contexts):
    tokens = contexts[-1] - contexts[0] + 1
    weights = _weigh_contexts(contexts, tokens)
    assert weights.sum() == pytest.approx(tokens)
    # A cost that is linear in the context is summed exactly.
    every = np.arange(contexts[0], contexts[-1] + 1)
    assert weights @ np.array(contexts) == pytest.approx(every.sum(), rel=0.02)


@pytest.mark.parametrize("tokens", [0, -3, 10**9])
def test_impossible_lengths_are_refused(tokens):
    with pytest.raises(InputError, match="tokens"):
        GenerationRequest(prompt_tokens=tokens)
