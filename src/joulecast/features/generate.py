"""Estimate what generating text with a language model costs, before it runs.

    E = E_prefill + Σ_c E_decode(c)       c = P + 1 ... P + N, the tokens attended to

The model reads the prompt at once (prefill) and then generates one token after the other (decode),
each of which attends to all earlier ones. A decode step's cost grows nearly linearly with its
context, so a few contexts are estimated and the sum is that of straight lines between them.
Errors of all steps are correlated: the interval of a request follows from their joint covariance.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from joulecast.families import FAMILIES, is_family, make_family
from joulecast.features import arguments as given
from joulecast.features.arguments import Argument, verb
from joulecast.features.nets import NetRequest, require_torch
from joulecast.features.profiles import load_profile
from joulecast.operators import (
    APPENDS,
    count_operand,
    find_kind,
    input_shape,
    layer_work,
    make_layer,
    network_work,
    output_shape,
)
from joulecast.records import FLOAT_PRECISIONS, Estimate, Layer, Network, Op, Profile, Setup, Sizes
from joulecast.records.codec import Json, Record, not_stored
from joulecast.system.errors import ArgumentError, InputError, NetError, arg
from joulecast.system.units import (
    JOULES_PER_WH,
    format_duration,
    format_energy,
    format_interval,
    format_wh,
)
from joulecast.views.report import Block, Report, Reportable, Text, make_table
from joulecast.views.words import (
    describe_coverage,
    describe_provenance,
    describe_setup,
    format_level,
    format_with_interval,
)

if TYPE_CHECKING:
    from joulecast.estimators.fitted_profile import FittedProfile

READING_TOKENS = (251, 61)
"""Primes at which language models are read; the second one where the first is too long."""
_MOST_TOKENS = 10_000_000
_FROM_STEP = ("level", "device", "provenance", "covers", "estimator")
_CONTEXTS = 5
# Share of a decode step's energy above which waiting for the host decides what it costs.
_MOST_HOST_SHARE = 0.5
_EXPLANATION = (
    "Prompt tokens are computed together, and only the last one gets logits. A generated token "
    "reads all weights and the cached keys and values of its context. Sampling and tokenisation "
    "are not included."
)
_WAITING = (
    "Generated tokens mostly wait for the host. On an H200 such estimates were about twice as high "
    "as measured: do not rely on them; give --cuda-graphs if the model is run so."
)
# Widths of weights and numbers of heads never grow with the tokens.
_FIXED = (
    "cin", "cout", "vocabulary", "width", "hidden", "heads", "kv_heads", "head_dim", "experts",
    "groups", "depth", "kernel", "stride", "padding", "dilation", "order",
)  # fmt: skip

PromptTokens = Annotated[int, Argument("Tokens of a prompt.", least=1, most=_MOST_TOKENS)]
NewTokens = Annotated[int, Argument("Tokens generated after it.", least=1, most=_MOST_TOKENS)]
Sequences = Annotated[int, Argument("Sequences at the same time.", least=1)]
ModelPrecision = Annotated[
    str, Argument("Number format of weights and activations.", choices=FLOAT_PRECISIONS)
]


@verb
def generate(
    net: given.Net,
    inputs: Any = None,
    *,
    prompt_tokens: PromptTokens = 512,
    new_tokens: NewTokens = 128,
    batch: Sequences = 1,
    precision: ModelPrecision = "bf16",
    cuda_graphs: given.CudaGraphs = None,
    device: given.DeviceName = "",
    on: given.On = None,
    estimator: given.Estimator = "auto",
    level: given.Level = 0.95,
    store: given.Store = None,
) -> GenerationEstimate:
    """Estimate the energy of a prompt and of each token that NET generates after it.

    NET is file.py:make_net or package.module:make_net: a function that returns a language model and
    example inputs, whose length does not matter. The prompt is read at once; then each new token
    attends to all earlier ones, whose keys and values are cached.
    """
    if device and on is not None:
        raise ArgumentError(f"{arg('device')} and {arg('on')} both name a device: give one of them")
    from joulecast.estimators import fit_profile
    from joulecast.runtimes import explain_runtime_difference

    network = read_language_model(net, inputs)
    setup = Setup(batch, "inference", precision, cuda_graphs=bool(cuda_graphs))
    is_given = isinstance(device, Profile)
    profile = device if is_given else load_profile(device, on=on or "cpu", store=store)
    fitted = fit_profile(profile, estimator)
    found = estimate_generation(fitted, network, setup, prompt_tokens, new_tokens, level)
    difference = explain_runtime_difference(profile.runtime)
    notes = (*found.notes, difference) if difference else found.notes
    return replace(found, notes=notes, net=net if isinstance(net, str) else network.name)


@dataclass(frozen=True)
class TokenEstimate(Record):
    """One decode step: a token of every sequence of the batch."""

    context: int  # tokens that the new one attends to
    token_j: float  # energy of one token of one sequence
    token_interval_j: tuple[float, float]
    step_s: float


@dataclass(frozen=True)
class GenerationEstimate(Record, Reportable):
    """Prompts and generated tokens of a batch of sequences."""

    batch: int
    prompt_tokens: int
    new_tokens: int
    prompt_token_j: float  # energy of one token of a prompt
    prompt_token_interval_j: tuple[float, float]
    prefill_s: float  # duration until the prompts are read
    decode: tuple[TokenEstimate, ...]  # the decode step at a few contexts
    request_j: float  # energy of one prompt and the tokens generated after it
    request_interval_j: tuple[float, float]
    request_s: float  # duration of a batch of requests
    tokens_per_s: float  # generated tokens a second, of all sequences together
    level: float
    device: str
    provenance: str
    covers: str
    estimator: str
    setup: Setup
    notes: tuple[str, ...] = ()
    net: str = not_stored("")

    def to_dict(self) -> Json:
        per_thousand_wh = 1000.0 * self.request_j / JOULES_PER_WH
        return {**super().to_dict(), "wh_per_1000_requests": per_thousand_wh}

    def report(self) -> Report:
        request = format_with_interval(
            self.request_j, self.request_interval_j, self.level, self.provenance
        )
        sequences = f" for {self.batch:,} sequences at once" if self.batch > 1 else ""
        prompt = TokenEstimate(
            self.prompt_tokens, self.prompt_token_j, self.prompt_token_interval_j, self.prefill_s
        )
        names = [f"Prompt, {self.prompt_tokens:,} tokens"]
        names += [f"Token {one.context:,}" for one in self.decode]
        rows = []
        for name, one in zip(names, (prompt, *self.decode), strict=True):
            interval = format_interval(one.token_interval_j, format_energy)
            rows.append((name, format_energy(one.token_j), interval, format_duration(one.step_s)))
        columns = ("", ">energy per token", f">{format_level(self.level)}", ">duration of the step")
        covers = describe_coverage(self.provenance, self.covers)
        source = f"Provenance: {describe_provenance(self.provenance)}; {covers}."
        lead = (
            f"A prompt of {self.prompt_tokens:,} tokens and {self.new_tokens:,} generated ones "
            f"take {request}."
        )
        units = (
            f"{format_wh(1000.0 * self.request_j)} per 1,000 requests · "
            f"{format_duration(self.request_s)}{sequences} · "
            f"{self.tokens_per_s:,.0f} generated tokens/s"
        )
        notes = (Text(note, "note") for note in (source, *self.notes, _EXPLANATION))
        blocks: list[Block] = [Text(lead, "lead"), Text(units), make_table(columns, rows), *notes]
        title = f"Generating with {self.net} on {self.device}: {describe_setup(self.setup)}"
        return Report(title, tuple(blocks), self.provenance, "generation")


def estimate_generation(
    profile: FittedProfile,
    network: Network,
    setup: Setup,
    prompt_tokens: int,
    new_tokens: int,
    level: float = 0.95,
) -> GenerationEstimate:
    """Estimate a batch of requests to a language model that was read at ``READING_TOKENS``."""
    import numpy as np

    from joulecast.gp.lognormal import lognormal_interval

    contexts = np.linspace(prompt_tokens + 1, prompt_tokens + new_tokens, _CONTEXTS)
    contexts = np.unique(contexts.round().astype(int))
    networks = [
        make_prefill_network(network, prompt_tokens),
        *(make_decode_network(network, context) for context in contexts.tolist()),
    ]
    found = profile.estimate(networks, setup, level, joint=True)
    assert found.cov is not None
    # How many generated tokens each context stands for, by straight lines between them.
    every = np.arange(contexts[0], contexts[-1] + 1)
    counts = np.array([np.interp(every, contexts, one).sum() for one in np.eye(len(contexts))])
    weights = np.array([1.0, *counts]) / setup.batch
    request_j = float(weights @ found.energy_j)
    variance = float(weights @ found.cov @ weights)
    prefill, *steps = found.estimates
    decode_s = float(counts @ [one.duration_s for one in steps])

    def divide(step: Estimate, context: int, tokens: int = 1) -> TokenEstimate:
        factor = 1.0 / setup.batch / tokens
        low_j, high_j = step.interval_j
        ends_j = (low_j * factor, high_j * factor)
        return TokenEstimate(context, step.energy_j * factor, ends_j, step.duration_s)

    prompt = divide(prefill, prompt_tokens, prompt_tokens)
    notes = dict.fromkeys(note for one in found for note in one.notes)
    if not setup.cuda_graphs and (steps[0].host_share or 0.0) > _MOST_HOST_SHARE:
        notes[_WAITING] = None
    return GenerationEstimate(
        batch=setup.batch,
        prompt_tokens=prompt_tokens,
        new_tokens=new_tokens,
        prompt_token_j=prompt.token_j,
        prompt_token_interval_j=prompt.token_interval_j,
        prefill_s=prompt.step_s,
        decode=tuple(map(divide, steps, contexts.tolist())),
        request_j=request_j,
        request_interval_j=lognormal_interval(request_j, variance, level),
        request_s=prefill.duration_s + decode_s,
        tokens_per_s=setup.batch * new_tokens / decode_s,
        setup=setup,
        notes=tuple(notes),
        **{name: getattr(prefill, name) for name in _FROM_STEP},
    )


def read_language_model(net: Any, inputs: Any = None) -> Network:
    """Return a language model's network at the number of tokens that generation starts from.

    Raises:
        InputError: It is a file that cannot be read at another length.
        NetError: It cannot be read, or does not read tokens.
    """
    if isinstance(net, Network):
        return net
    name = NetRequest(net).name
    if name and is_family(name):
        if not FAMILIES[name.partition(":")[0]].input.vocabulary:
            raise NetError(f"{name} does not read tokens: give a language model")
        return make_family(name, READING_TOKENS[:1])
    if name.endswith((".onnx", ".json")):
        raise InputError(
            f"{name} has a fixed number of tokens: give the function that makes the module, "
            "file.py:make_net"
        )
    if name and ":" not in name:
        raise NetError(
            f"there is no language model {name!r}: give file.py:make_net or package.module:make_net"
        )
    require_torch("reading a language model")
    from joulecast.torch_nets.load import read_at_tokens

    try:
        return read_at_tokens(name or net, inputs, READING_TOKENS[0])
    except NetError as error:
        try:
            return read_at_tokens(name or net, inputs, READING_TOKENS[1])
        except NetError:
            raise error from None


# ---------------------------------------------------------------------------------------------
# Networks of another number of tokens, apart for queries and for keys
#
# The network was read at a prime number of tokens T that divides no width, so that sizes which are
# multiples of T are those that grow with the tokens. Of two such axes, as in scores of attention,
# the first belongs to the queries and the second to the keys. A concatenation of one input along
# the tokens appends to a cache of keys or values: it copies the whole cache.


def make_prefill_network(network: Network, tokens: int) -> Network:
    """Return the network that reads a prompt and computes the logits of its last token.

    Raises:
        NetError: It is not a language model, or was not read at one of ``READING_TOKENS``.
    """
    axes = _TokenAxes(_find_tokens(network), tokens, tokens)
    layers = [axes.resize_layer(layer) for layer in network.layers]
    last = network.layers[-1]
    if find_kind(last.kind).inner_width and "lead" in last.sizes:
        layers[-1] = replace(axes, queries=1).resize_layer(last)
    return _replace_layers(network, layers, network.groups, tokens)


def make_decode_network(network: Network, context: int) -> Network:
    """Return the network that computes one more token, which attends to ``context`` with itself.

    Raises:
        NetError: It is not a language model, was read at another length, or does not attend.
    """
    axes = _TokenAxes(_find_tokens(network), 1, context)
    layers: list[Layer] = []
    places: list[int] = []
    for index, layer in enumerate(network.layers):
        # How far back a result lies among the new layers; before the first one is the input.
        sources = [index - back for back in layer.reads]
        reads = tuple(len(layers) - (places[at] if at >= 0 else at) for at in sources)
        source = network.layers[sources[0]] if sources and sources[0] >= 0 else None
        is_strided = source is not None and _reads_part(layer, source)
        layers += axes.split_cache(replace(layer, reads=reads), is_strided)
        places.append(len(layers) - 1)
    if not any("kv_tokens" in layer.sizes or "k" in layer.sizes for layer in layers):
        raise NetError(f"{network.name or 'the network'} has no attention: it generates no text")
    # No blocks: most of a decode step is the start of kernels, which differs by their number.
    return _replace_layers(network, layers, (), 1)


@dataclass(frozen=True)
class _TokenAxes:
    """New lengths of the axes that had ``tokens`` tokens."""

    tokens: int
    queries: int
    keys: int

    def resize_layer(self, layer: Layer) -> Layer:
        """Return a layer with the new lengths; a single query needs no causal mask."""
        sizes = self._resize_sizes(layer.sizes)
        if "causal" in sizes and self.queries == 1 < self.keys:
            sizes["causal"] = 0
        tail = tuple(Op(op.kind, Sizes(self._resize_sizes(op.sizes))) for op in layer.tail)
        return replace(layer, sizes=Sizes(sizes), tail=tail)

    def split_cache(self, layer: Layer, is_strided: bool) -> Iterator[Layer]:
        """Yield a layer with the new lengths, and the cache that it appends to as a layer."""
        shape = input_shape(layer)
        tail: list[Op] = []
        current = replace(layer, tail=())
        if len(layer.reads) == 1 and self._appends(layer, shape):
            yield self._make_cache(current, shape, is_strided)
            return
        for op in layer.tail:
            before = output_shape(replace(current, tail=tuple(tail)))
            if self._appends(op, before):
                yield self.resize_layer(replace(current, tail=tuple(tail)))
                yield self._make_cache(replace(layer, reads=(1,)), before, False)
                return
            tail.append(op)
        yield self.resize_layer(layer)

    def _appends(self, op: Op, shape: tuple[int, ...]) -> bool:
        """Return whether an operator concatenates tokens to nothing that a layer computes."""
        is_concat = str(op.sizes.get("fn", "")).startswith("concat along ")
        is_alone = op.sizes.get("inputs") == 1 and not count_operand(op.sizes)
        return is_concat and is_alone and self.tokens in shape

    def _make_cache(self, layer: Layer, shape: tuple[int, ...], is_strided: bool) -> Layer:
        new, cached = (
            tuple(length if size == self.tokens else size for size in shape)
            for length in (self.queries, self.keys)
        )
        function = APPENDS[is_strided]
        cache = make_layer("elementwise", fn=function, shape=new, out=cached)
        return replace(cache, reads=layer.reads, name=f"{layer.name}.cache")

    def _resize_sizes(self, sizes: Mapping[str, Any]) -> dict[str, Any]:
        resized = dict(sizes)
        for name, value in sizes.items():
            if name == "kv_tokens":
                resized[name] = self._resize_count(value, (self.keys,))
            elif name not in _FIXED and isinstance(value, tuple):
                resized[name] = self._resize_axes(value)
            elif name not in (*_FIXED, "m", "k", "n") and isinstance(value, int):
                # Products of a query and a key axis grow with both.
                resized[name] = self._resize_count(value, (self.queries, self.keys))
        if {"m", "k", "n"} <= sizes.keys():
            values = self._resize_axes(tuple(sizes[name] for name in ("m", "k", "n")))
            resized.update(zip(("m", "k", "n"), values, strict=True))
        return resized

    def _resize_axes(self, axes: tuple[int, ...]) -> tuple[int, ...]:
        lengths = iter((self.queries, self.keys))
        return tuple(
            self._resize_count(size, (next(lengths, self.keys),)) if self._grows(size) else size
            for size in axes
        )

    def _resize_count(self, count: int, lengths: tuple[int, ...]) -> int:
        """Return a count with a length in place of each factor that is the number of tokens."""
        factor = 1
        for length in lengths:
            if self._grows(count):
                count, factor = count // self.tokens, factor * length
        return count * factor

    def _grows(self, size: int) -> bool:
        return size > 0 and size % self.tokens == 0


def _find_tokens(network: Network) -> int:
    shape = network.input.shape
    reads_tokens = any(find_kind(layer.kind).reads_tokens for layer in network.layers)
    if not reads_tokens or len(shape) != 1:
        raise NetError(
            f"{network.name or 'the network'} does not read tokens: give a language model"
        )
    if shape[0] not in READING_TOKENS:
        lengths = " or ".join(map(str, READING_TOKENS))
        raise NetError(f"the network has {shape[0]} tokens: read it with {lengths}")
    return shape[0]


def _reads_part(layer: Layer, source: Layer) -> bool:
    """Return whether a layer reads a part of a tensor, such as one third of a projection."""
    given = math.prod(output_shape(source))
    is_view = not layer_work(source, Setup(phase="inference")).forward.size_bytes
    return math.prod(input_shape(layer)) < given or (
        is_view and given < math.prod(input_shape(source))
    )


def _replace_layers(
    network: Network, layers: list[Layer], groups: tuple[tuple[int, int], ...], tokens: int
) -> Network:
    totals = network.totals
    changed = replace(
        network,
        layers=tuple(layers),
        groups=groups,
        input=replace(network.input, shape=(tokens,)),
        totals=None,
    )
    if totals is None:
        return changed
    setup = Setup(phase="inference")
    before, after = (network_work(one, setup).forward for one in (network, changed))
    totals = replace(
        totals,
        flops=totals.flops * after.flops / max(before.flops, 1.0),
        size_bytes=totals.size_bytes * after.size_bytes / max(before.size_bytes, 1.0),
    )
    return replace(changed, totals=totals)
