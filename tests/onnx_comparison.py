"""Compare the ONNX graph of a network with the module that PyTorch builds, on the same weights."""

import numpy as np
import torch

from joulecast.kinds import input_shape
from joulecast.records import Input, Network, Setup
from joulecast.runtimes.onnx.build import add_network
from joulecast.runtimes.onnx.graph import OnnxGraph
from joulecast.runtimes.onnx.sessions import open_session
from joulecast.runtimes.torch.build import build_seeded

BATCH = 2
VOCABULARY = 100
SETUP = Setup(batch=BATCH, phase="inference", threads=1)


def make_network(layer):
    """Return a network of one layer."""
    vocabulary = VOCABULARY if layer.kind.startswith("embedding") else 0
    return Network((layer,), Input(input_shape(layer), vocabulary))


def run_both(network):
    """Return what PyTorch and ONNX Runtime compute for one batch."""
    net = build_seeded(network, 0).eval()
    with torch.no_grad():
        for weight in net.parameters():
            # So that a bias or a scale that is left out shows.
            weight += 0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    layers = net.layer_modules()

    def weights(number, name, shape, start):
        module = layers[number]
        array = {**dict(module.named_parameters()), **dict(module.named_buffers())}[name]
        assert tuple(array.shape) == tuple(shape)
        return array.detach().numpy()

    graph = OnnxGraph(BATCH)
    shape = (BATCH, *network.input.shape)
    x = graph.add_input("x", shape, bool(network.input.vocabulary))
    model = graph.make_model([add_network(graph, network, x, weights)])
    batch = _draw_batch(network, shape)
    with torch.no_grad():
        expected = net(batch).numpy()
    session = open_session(model.SerializeToString(), SETUP)
    (found,) = session.run(None, {"x": batch.numpy()})
    return expected, found


def compare_with_torch(network):
    """Assert that both compute the same."""
    expected, found = run_both(network)
    assert found.shape == expected.shape
    scale = float(np.abs(expected).max())
    assert scale > 0
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * scale)


def _draw_batch(network, shape):
    draw = torch.Generator().manual_seed(2)
    if network.input.vocabulary:
        return torch.randint(0, network.input.vocabulary, shape, generator=draw)
    return torch.randn(shape, generator=draw)
