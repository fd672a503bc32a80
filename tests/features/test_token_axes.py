"""Prefill and decode networks of language models that were read once."""

from dataclasses import replace

import pytest

from joulecast.families import make_family
from joulecast.features.generate import READING_TOKENS, make_decode_network, make_prefill_network
from joulecast.operators import layer_work, make_layer, network_work, output_shape
from joulecast.records import Input, Network, Setup
from joulecast.system.errors import NetError

TOKENS = READING_TOKENS[0]
SETUP = Setup(1, phase="inference", precision="bf16")


def make_attention_network(cache=True):
    """Return one layer of attention whose keys and values come from a packed projection."""
    heads, head_dim = 4, 16
    width = heads * head_dim
    shape = (heads, TOKENS, head_dim)
    concat = [
        make_layer("elementwise", fn="concat along 2", shape=shape, inputs=1) for _ in range(2)
    ]
    sdpa = make_layer(
        "sdpa",
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        tokens=TOKENS,
        kv_tokens=TOKENS,
        causal=1,
    )
    layers = [
        make_layer("embedding", vocabulary=100, width=width, lead=(TOKENS,)),
        make_layer("linear", cin=width, cout=3 * width, lead=(TOKENS,)),
    ]
    if cache:
        layers += [concat[0], replace(concat[1], reads=(2,)), replace(sdpa, reads=(3, 2, 1))]
    else:
        layers.append(sdpa)
    layers += [make_layer("linear", cin=width, cout=100, lead=(TOKENS,))]
    return Network(tuple(layers), Input((TOKENS,), 100))


def test_prefill_has_logits_of_the_last_token_only():
    prefill = make_prefill_network(make_attention_network(), 40)
    assert prefill.input.shape == (40,)
    assert output_shape(prefill.layers[1]) == (40, 192)
    assert prefill.layers[4].sizes["kv_tokens"] == prefill.layers[4].sizes["tokens"] == 40
    assert output_shape(prefill.layers[-1]) == (1, 100)


def test_decode_attends_to_the_whole_context_and_copies_the_cache():
    decode = make_decode_network(make_attention_network(), 1000)
    kinds = [str(layer.sizes.get("fn", layer.kind)) for layer in decode.layers]
    assert kinds == ["embedding", "linear", "append strided", "append strided", "sdpa", "linear"]
    assert output_shape(decode.layers[1]) == (1, 192)
    cache, sdpa = decode.layers[2], decode.layers[4]
    assert (cache.sizes["shape"], cache.sizes["out"]) == ((4, 1, 16), (4, 1000, 16))
    assert (sdpa.sizes["tokens"], sdpa.sizes["kv_tokens"], sdpa.sizes["causal"]) == (1, 1000, 0)
    # The cache is read and written in bf16.
    assert layer_work(cache, SETUP).forward.size_bytes == 2 * 2 * 4 * 1000 * 16


def test_reads_follow_their_layers_where_caches_are_inserted():
    network = make_attention_network()
    tail = network.layers[2]
    projection = replace(network.layers[1], tail=(tail,))
    joined = make_layer("elementwise", fn="add", inputs=2, shape=(TOKENS, 192))
    joined = replace(joined, reads=(1, 1), join="add")
    decode = make_decode_network(
        Network(
            (network.layers[0], projection, replace(network.layers[4], reads=(3, 2, 1)), joined),
            network.input,
        ),
        9,
    )
    # A cache behind the projection moves everything after it by one.
    assert [layer.reads for layer in decode.layers] == [(1,), (1,), (1,), (4, 3, 1), (1, 1)]


def test_cost_of_decoding_grows_with_the_context_only_in_attention():
    network = make_attention_network()
    short, long = (network_work(make_decode_network(network, c), SETUP) for c in (100, 1100))
    grown = long.forward.size_bytes - short.forward.size_bytes
    # Keys and values of 1,000 tokens: read by attention, and copied.
    assert grown == pytest.approx((2 + 4) * 1000 * 64 * 2)
    assert long.params == short.params


def test_family_without_a_cache_decodes_too():
    decode = make_decode_network(make_family("transformer", (TOKENS,)), 300)
    contexts = {layer.sizes["kv_tokens"] for layer in decode.layers if layer.kind == "sdpa"}
    assert contexts == {300}


def test_networks_without_tokens_or_attention_are_refused():
    with pytest.raises(NetError, match="does not read tokens"):
        make_prefill_network(make_family("cnn5"), 10)
    with pytest.raises(NetError, match="read it with 251 or 61"):
        make_decode_network(make_family("transformer", (64,)), 10)
    with pytest.raises(NetError, match="no attention"):
        make_decode_network(make_family("lstm", (TOKENS,)), 10)
