"""Compare networks in MNN with the same ones in PyTorch."""

import torch

from joulecast.records import Network
from joulecast.runtimes.mnn.build import MnnNetwork
from joulecast.runtimes.mnn.engine import ENGINE, NN, OPTIM, draw_uniform, make_indices
from joulecast.runtimes.torch.build import build_seeded

BATCH = 3


def compare_with_torch(network: Network) -> None:
    """Train one step of the squared error in both frameworks from the same weights."""
    net, module = MnnNetwork(network, 5), build_seeded(network, 5)
    if network.input.vocabulary:
        count = BATCH * network.input.shape[0]
        tokens = [number % network.input.vocabulary for number in range(count)]
        x = make_indices(tokens, [BATCH, *network.input.shape])
        inputs = torch.tensor(tokens).reshape(BATCH, -1)
    else:
        x = draw_uniform([BATCH, *network.input.shape], 1.0, 6)
        inputs = torch.tensor(x.read())
    before = {name: torch.tensor(weight.read()) for name, weight in net.weights.trained.items()}
    weights = [weight for name, weight in module.named_parameters() if "bias_hh" not in name]
    with torch.no_grad():
        for name, weight in module.named_parameters():
            if "bias_hh" in name:
                weight.zero_()
        for weight, drawn in zip(weights, before.values(), strict=True):
            weight.copy_(drawn.reshape(weight.shape))
    net.check_shapes(x)
    out, expected = net.run(x), module(inputs)
    torch.testing.assert_close(torch.tensor(out.read()), expected.detach(), rtol=1e-3, atol=1e-3)

    targets = draw_uniform([1, expected.numel()], 1.0, 7)
    loss = NN.loss.mse(ENGINE.reshape(net.run(x), [1, expected.numel()]), targets)
    assert OPTIM.SGD(net.weights.module, 1.0, 0.0).step(loss)
    (expected.reshape(1, -1) - torch.tensor(targets.read())).square().sum().backward()
    for (name, old), weight in zip(before.items(), weights, strict=True):
        gradient = old - torch.tensor(net.weights.trained[name].read())
        scale = float(weight.grad.abs().max()) or 1.0
        torch.testing.assert_close(
            gradient.reshape(weight.shape) / scale, weight.grad / scale, rtol=0, atol=2e-3, msg=name
        )
