"""Text generation: what a prompt and each generated token cost, and the networks of both."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from joulecast.estimators import fit_profile
from joulecast.families import make_family
from joulecast.features.generate import (
    READING_TOKENS,
    estimate_generation,
    make_decode_network,
    make_prefill_network,
)
from joulecast.features.profiles import load_profile
from joulecast.operators import layer_work, make_layer, network_work, output_shape
from joulecast.records import Input, Network, Setup
from joulecast.runtimes import explain_runtime_difference
from joulecast.system.errors import NetError

NET = f"{Path(__file__).parents[1]}/golden/assets/nets.py:make_language"
DEVICE = ("--device", "nvidia-h200")
TOKENS = READING_TOKENS[0]
TRANSFORMER = make_family("transformer", (TOKENS,))
SETUP = Setup(4, phase="inference", precision="bf16", cuda_graphs=True)


def test_prompt_and_tokens_are_estimated_apart(shell):
    words = ("generate", NET, "--batch", "8", *DEVICE)
    lengths = ("--prompt-tokens", "300", "--new-tokens", "50")
    text = " ".join(shell(*words, *lengths, "--cuda-graphs").stdout.split())
    assert "A prompt of 300 tokens and 50 generated ones take" in text and "Token 350" in text
    assert "for 8 sequences at once" in text and "the meter covers gpu." in text
    data = shell.json(*words)
    total_j, (low_j, high_j) = data["request_j"], data["request_interval_j"]
    assert low_j < total_j < high_j
    assert data["wh_per_1000_requests"] == pytest.approx(total_j / 3.6)
    prompt_j = data["prompt_tokens"] * data["prompt_token_j"]
    assert prompt_j < total_j < prompt_j + 130 * data["decode"][-1]["token_j"]
    # Another version of the framework is noted.
    assert explain_runtime_difference(load_profile("nvidia-h200").runtime) in data["notes"]


@pytest.mark.parametrize(
    ("net", "message"),
    [
        ("cnn5", "does not read tokens"),
        ("net.onnx", "fixed number of tokens"),
        ("missing.py:make", "no file missing.py"),
        ("nosuch", "no language model 'nosuch'"),
    ],
)
def test_other_nets_are_refused_in_one_line(shell, net, message):
    assert message in shell.fails("generate", net, *DEVICE)


@pytest.fixture(scope="module")
def profile():
    return fit_profile(load_profile("nvidia-h200"))


@pytest.mark.parametrize("new", [1, 2, 12])
def test_request_is_a_prompt_and_all_its_tokens(profile, new):
    found = estimate_generation(profile, TRANSFORMER, SETUP, 60, new)
    networks = [make_prefill_network(TRANSFORMER, 60)]
    networks += [make_decode_network(TRANSFORMER, 61 + number) for number in range(new)]
    single = profile.estimate(networks, SETUP)
    assert found.request_j == pytest.approx(single.energy_j.sum() / 4, rel=0.01)
    assert found.prompt_token_j == pytest.approx(single[0].energy_j / 4 / 60)
    assert found.decode[0].token_j == pytest.approx(single[1].energy_j / 4)
    assert found.decode[-1].context == 60 + new
    decode_s = sum(one.duration_s for one in single[1:])
    assert found.request_s == pytest.approx(single[0].duration_s + decode_s, rel=0.01)
    assert found.tokens_per_s == pytest.approx(4 * new / decode_s, rel=0.01)


def test_errors_of_tokens_do_not_average_out(profile):
    """They are estimated from the same layers, so that they err together."""
    found = estimate_generation(profile, TRANSFORMER, SETUP, 60, 500)
    low_j, high_j = found.request_interval_j
    token_low_j, token_high_j = found.decode[0].token_interval_j
    width = np.log(high_j / low_j) / np.log(token_high_j / token_low_j)
    assert 0.7 < width < 1.1


@pytest.mark.parametrize("cuda_graphs", [False, True])
def test_waiting_for_the_host_is_warned_of(profile, cuda_graphs):
    setup = replace(SETUP, batch=1, cuda_graphs=cuda_graphs)
    notes = estimate_generation(profile, TRANSFORMER, setup, 60, 2).notes
    assert any("wait for the host" in note for note in notes) == (not cuda_graphs)


# Prefill and decode networks of a model that was read once


def make_attention_network():
    """Return one layer of attention whose keys and values come from a packed projection."""
    heads, head_dim, width = 4, 16, 64
    lengths = {"tokens": TOKENS, "kv_tokens": TOKENS, "causal": 1}
    shape = (heads, TOKENS, head_dim)
    concat = make_layer("elementwise", fn="concat along 2", shape=shape, inputs=1)
    sdpa = make_layer("sdpa", heads=heads, kv_heads=heads, head_dim=head_dim, **lengths)
    layers = (
        make_layer("embedding", vocabulary=100, width=width, lead=(TOKENS,)),
        make_layer("linear", cin=width, cout=3 * width, lead=(TOKENS,)),
        concat,
        replace(concat, reads=(2,)),
        replace(sdpa, reads=(3, 2, 1)),
        make_layer("linear", cin=width, cout=100, lead=(TOKENS,)),
    )
    return Network(layers, Input((TOKENS,), 100))


NETWORK = make_attention_network()


def test_prefill_has_logits_of_the_last_token_only():
    prefill = make_prefill_network(NETWORK, 40)
    assert prefill.input.shape == (40,) and output_shape(prefill.layers[1]) == (40, 192)
    assert prefill.layers[4].sizes["kv_tokens"] == prefill.layers[4].sizes["tokens"] == 40
    assert output_shape(prefill.layers[-1]) == (1, 100)


def test_sizes_of_scores_grow_with_queries_and_keys():
    bias = make_layer("elementwise", fn="add", shape=(8, TOKENS, TOKENS), params=8 * TOKENS**2)
    network = Network((*NETWORK.layers[:5], bias, NETWORK.layers[-1]), NETWORK.input)
    for made, lengths in (
        (make_prefill_network(network, 40), (40, 40)),
        (make_decode_network(network, 40), (1, 40)),
    ):
        sizes = made.layers[-2].sizes
        assert (sizes["shape"], sizes["params"]) == ((8, *lengths), 8 * np.prod(lengths))


def test_decode_attends_to_the_whole_context_and_copies_the_cache():
    decode = make_decode_network(NETWORK, 1000)
    kinds = [str(layer.sizes.get("fn", layer.kind)) for layer in decode.layers]
    assert kinds == ["embedding", "linear", "append strided", "append strided", "sdpa", "linear"]
    assert output_shape(decode.layers[1]) == (1, 192)
    cache, sdpa = decode.layers[2], decode.layers[4]
    assert (cache.sizes["shape"], cache.sizes["out"]) == ((4, 1, 16), (4, 1000, 16))
    assert (sdpa.sizes["tokens"], sdpa.sizes["kv_tokens"], sdpa.sizes["causal"]) == (1, 1000, 0)
    # The cache is read and written in bf16.
    assert layer_work(cache, SETUP).forward.size_bytes == 4 * 2 * 2 * 4 * 1000 * 16
    family = make_decode_network(TRANSFORMER, 300)
    assert {one.sizes["kv_tokens"] for one in family.layers if one.kind == "sdpa"} == {300}


def test_reads_follow_their_layers_where_caches_are_inserted():
    first, projection, cache, _, sdpa, _ = NETWORK.layers
    joined = make_layer("elementwise", fn="add", inputs=2, shape=(TOKENS, 192))
    joined = replace(joined, reads=(1, 1), join="add")
    layers = (first, replace(projection, tail=(cache,)), replace(sdpa, reads=(3, 2, 1)), joined)
    decode = make_decode_network(Network(layers, NETWORK.input), 9)
    # A cache behind the projection moves everything after it by one.
    assert [layer.reads for layer in decode.layers] == [(1,), (1,), (1,), (4, 3, 1), (1, 1)]


def test_cost_of_decoding_grows_with_the_context_only_in_attention():
    setup = replace(SETUP, batch=1)
    short, long = (network_work(make_decode_network(NETWORK, c), setup) for c in (100, 1100))
    grown = long.forward.size_bytes - short.forward.size_bytes
    # Keys and values of 1,000 tokens: read by attention, and copied.
    assert grown == pytest.approx((2 + 4) * 1000 * 64 * 2)
    assert long.params == short.params


@pytest.mark.parametrize(
    ("network", "said"),
    [
        (make_family("cnn5"), "does not read tokens"),
        (make_family("transformer", (64,)), "read it with 251 or 61"),
        (make_family("lstm", (TOKENS,)), "no attention"),
    ],
)
def test_networks_without_tokens_or_attention_are_refused(network, said):
    with pytest.raises(NetError, match=said):
        make_decode_network(network, 10)
