"""Train networks in NumPy, on the processor: a runtime for Joulecast.

    Trial ──NumpyRuntime.prepare──▶ Chain of operators ──two steps, checked──▶ NumpyStep

It builds chains of linear layers and activations. Everything else is refused by name.
"""

import math
import os

import numpy as np
from threadpoolctl import threadpool_limits

from joulecast.devices.detect import detect_device
from joulecast.operators import peak_memory
from joulecast.system.errors import InputError, NetError, NotTrainingError, OutOfMemoryError

RATES = {"sgd": 0.01, "adam": 1e-3, "adamw": 1e-3}
DECAY = 0.01
# Weights hardly change while steps are measured: training again and again on one batch would kill
# units, and the step would become cheaper.
MEASURED_RATE_SHARE = 1e-4
# A narrow network may start with a dead ReLU, whose weights never change.
SEEDS = 5


class NumpyRuntime:
    """NumPy as a runtime: what the entry point names."""

    name = f"numpy-{np.__version__}"
    modes = ("eager",)

    def __init__(self, on="numpy"):
        if on not in ("numpy", "numpy:cpu"):
            raise InputError(f"NumPy runs on the processor only, not on {on!r}: give numpy:cpu")
        self.device = detect_device("cpu")

    def prepare(self, trial):
        """Build a trial's network, check that it trains, and return its step."""
        setup, execution = trial.setup, trial.execution
        if execution.mode != "eager":
            raise InputError(f"NumPy cannot run the mode {execution.mode}: use eager")
        if (setup.precision, setup.loss) != ("fp32", "cross_entropy"):
            raise InputError("NumPy trains in fp32 with cross_entropy only: choose these")
        needed = peak_memory(trial.network, setup) * execution.copies
        if self.device.memory_bytes and needed > self.device.memory_bytes:
            raise OutOfMemoryError(
                f"the step needs {needed / 2**20:.0f} MiB, more than this machine has: use a "
                "smaller batch"
            )
        seed = int(trial.key[:6], 16)
        for attempt in range(SEEDS):
            try:
                return NumpyStep(trial, np.random.default_rng(seed + attempt))
            except NotTrainingError:
                if attempt == SEEDS - 1:
                    raise
        raise AssertionError("unreachable")


class NumpyStep:
    """A step of one or more copies of a network, built and checked."""

    def __init__(self, trial, rng):
        self._setup, self._stage = trial.setup, trial.execution.stage
        self._threads = trial.setup.threads or len(os.sched_getaffinity(0))
        is_random = trial.execution.upstream == "random"
        self._chains = [
            Chain(trial.network, trial.setup, is_random, rng) for _ in range(trial.execution.copies)
        ]
        self._weights = [weight for chain in self._chains for weight in chain.weights]
        self._rate = RATES[trial.setup.optimizer]
        if trial.setup.phase == "inference":
            self._parts = [self._forward]
        else:
            parts = {"forward": self._forward, "backward": self._backward, "update": self._update}
            self._parts = list(parts.values()) if self._stage == "step" else [parts[self._stage]]
            if not self._weights and not is_random:
                raise NotTrainingError("no weight gets a gradient: there is nothing to train")
        with threadpool_limits(self._threads):
            self._check()
        self._rate *= MEASURED_RATE_SHARE

    def run(self, count):
        """Run steps; they are finished when it returns."""
        with threadpool_limits(self._threads):
            for _ in range(count):
                for part in self._parts:
                    part()

    def wait(self):
        """Return at once."""

    def peak_memory_bytes(self):
        """Return 0: NumPy does not tell."""
        return 0

    def close(self):
        """Release all arrays."""
        self._chains, self._weights, self._parts = [], [], []

    def _check(self):
        """Run two whole steps; raise NotTrainingError if they do not train.

        Stages that run alone afterwards use the results and gradients of these steps.
        """
        if self._setup.phase == "inference":
            self._forward()
            return
        before = [weight.value.copy() for weight in self._weights]
        for _ in range(2):
            losses = self._forward()
            self._backward()
            self._update()
        if not all(map(math.isfinite, losses)):
            raise NotTrainingError(f"the loss is {losses} after two steps: not measured")
        for weight, old in zip(self._weights, before, strict=True):
            if np.array_equal(weight.value, old):
                raise NotTrainingError(f"weight {weight.name} did not change: not measured")

    def _forward(self):
        return [chain.forward() for chain in self._chains]

    def _backward(self):
        for chain in self._chains:
            chain.backward()

    def _update(self):
        for weight in self._weights:
            weight.update(self._setup.optimizer, self._rate)


class Chain:
    """A network of layers that each read the one before, with a batch and a loss."""

    def __init__(self, network, setup, is_random, rng):
        if not network.layers or not network.buildable:
            raise NetError("the network is empty or cannot be rebuilt: give one with layers")
        if network.input.vocabulary:
            raise refuse("tokens")
        self.operators, self.weights = [], []
        for number, layer in enumerate(network.layers):
            name = layer.name or f"{number}.{layer.kind}"
            if layer.reads != (1,) or layer.join != "none" or layer.tied:
                raise refuse(f"layer {name}, which does not read the one before alone")
            for op in (layer, *layer.tail):
                if op.kind not in OPERATORS:
                    raise refuse(f"layer {name}: {op.kind}")
                self.operators.append(OPERATORS[op.kind](op.sizes, rng))
            first = self.operators[-1 - len(layer.tail)]
            # Frozen layers change no weights, and first layers compute no gradient of their input.
            first.trains, first.input_grad = layer.trains, layer.input_grad
            for weight in first.weights:
                weight.name = name
            self.weights.extend(first.weights if layer.trains else ())
        self._x = rng.uniform(-1, 1, (setup.batch, *network.input.shape)).astype(np.float32)
        self._is_random, self._rng = is_random, rng
        self._targets = self._gradient = None

    def forward(self):
        """Compute the result, and return the loss; 0 where backward starts from random numbers."""
        x = self._x
        for operator in self.operators:
            x = operator.forward(x)
        if self._targets is None:
            self._targets = self._draw_targets(x)
        if self._is_random:
            self._gradient = self._targets
            return 0.0
        loss, self._gradient = cross_entropy(x, self._targets)
        return loss

    def backward(self):
        """Compute the gradients of all weights."""
        gradient = self._gradient
        for operator in reversed(self.operators):
            if gradient is not None:
                gradient = operator.backward(gradient)

    def _draw_targets(self, result):
        if self._is_random:
            return self._rng.uniform(-1, 1, result.shape).astype(np.float32)
        return self._rng.integers(result.shape[-1], size=result.shape[:-1])


def cross_entropy(result, labels):
    """Return the loss and its gradient."""
    shifted = np.exp(result - result.max(-1, keepdims=True))
    probabilities = shifted / shifted.sum(-1, keepdims=True)
    chosen = np.take_along_axis(probabilities, labels[..., None], -1)
    gradient = probabilities.copy()
    np.put_along_axis(gradient, labels[..., None], chosen - 1, -1)
    return float(-np.log(chosen).mean()), gradient / labels.size


class Weight:
    """An array that is trained, with its gradient and the moments of its optimizer."""

    def __init__(self, rng, shape, fan_in):
        bound = fan_in**-0.5
        self.value = rng.uniform(-bound, bound, shape).astype(np.float32)
        self.gradient = self.first = self.second = np.zeros_like(self.value)
        self.steps = 0
        self.name = ""

    def update(self, optimizer, rate):
        """Change the array by its gradient, as PyTorch's optimizers do."""
        self.steps += 1
        if optimizer == "sgd":
            self.first = 0.9 * self.first + self.gradient
            self.value -= rate * self.first
            return
        if optimizer == "adamw":
            self.value *= 1 - rate * DECAY
        self.first = 0.9 * self.first + 0.1 * self.gradient
        self.second = 0.999 * self.second + 0.001 * self.gradient**2
        mean = self.first / (1 - 0.9**self.steps)
        self.value -= rate * mean / (np.sqrt(self.second / (1 - 0.999**self.steps)) + 1e-8)


class Operator:
    """An operator; forward keeps what backward needs."""

    trains = input_grad = True

    def __init__(self, sizes, rng):
        self.sizes, self.weights = sizes, []


class Linear(Operator):
    """A product with a matrix, and a bias."""

    def __init__(self, sizes, rng):
        super().__init__(sizes, rng)
        cin, cout = sizes["cin"], sizes["cout"]
        shapes = [(cout, cin), (cout,)] if sizes["bias"] else [(cout, cin)]
        self.weights = [Weight(rng, shape, cin) for shape in shapes]

    def forward(self, x):
        self.x = x
        y = x @ self.weights[0].value.T
        return y + self.weights[1].value if self.sizes["bias"] else y

    def backward(self, dy):
        if self.trains:
            rows, columns = dy.reshape(-1, dy.shape[-1]), self.x.reshape(-1, self.x.shape[-1])
            self.weights[0].gradient = rows.T @ columns
            if self.sizes["bias"]:
                self.weights[1].gradient = rows.sum(0)
        return dy @ self.weights[0].value if self.input_grad else None


class Elementwise(Operator):
    """An activation."""

    def __init__(self, sizes, rng):
        super().__init__(sizes, rng)
        if sizes["fn"] not in ACTIVATIONS or sizes["inputs"] != 1:
            raise refuse(sizes["fn"])
        self.function, self.slope = ACTIVATIONS[sizes["fn"]]

    def forward(self, x):
        self.y = self.function(x)
        return self.y

    def backward(self, dy):
        return dy * self.slope(self.y)


class Flatten(Operator):
    """All numbers of a sample in a row."""

    def forward(self, x):
        self.shape = x.shape
        return x.reshape(len(x), -1)

    def backward(self, dy):
        return dy.reshape(self.shape)


OPERATORS = {"linear": Linear, "elementwise": Elementwise, "flatten": Flatten}
# Functions, and their slopes by what they return.
ACTIVATIONS = {
    "relu": (lambda x: np.maximum(x, 0), lambda y: y > 0),
    "tanh": (np.tanh, lambda y: 1 - y**2),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), lambda y: y - y**2),
}


def refuse(what):
    """Return the error for what NumPy cannot train here."""
    return NetError(f"NumPy cannot train {what}: use PyTorch for it (--runtime torch)")
