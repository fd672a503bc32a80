"""Modules that stand for operators of read networks."""

import torch

from joulecast.kinds import make_op
from joulecast.runtimes.torch.modules import PackedSdpa


def test_attention_takes_its_fourth_input_as_a_bias():
    op = make_op("sdpa", heads=2, kv_heads=2, head_dim=4, tokens=3, kv_tokens=3, causal=0)
    query, key, value = (torch.randn(5, 3, 8, requires_grad=True) for _ in range(3))
    bias = torch.zeros(5, 9, requires_grad=True)
    module = PackedSdpa(op)
    out = module(query, key, value, bias)
    torch.testing.assert_close(out, module(query, key, value))
    out.square().sum().backward()
    assert all(one.grad.abs().sum() > 0 for one in (query, key, value, bias))


def test_inference_reads_cached_keys_instead_of_making_them():
    op = make_op("sdpa", heads=4, kv_heads=2, head_dim=4, tokens=1, kv_tokens=7, causal=0)
    module, x = PackedSdpa(op), torch.randn(3, 1, 32)
    with torch.no_grad():
        out = module(x)
        cached = {name: keys.data_ptr() for name, keys in module.cache.items()}
        torch.testing.assert_close(module(x), out)
    assert out.shape == (3, 1, 16)
    assert cached.keys() == {"key", "value"}
    assert {name: keys.data_ptr() for name, keys in module.cache.items()} == cached
    assert module.cache["key"].shape == (3, 2, 7, 4)
