"""Estimate what generating text with a language model costs, before it runs.

    E = E_prefill + Σ_c E_decode(c)       c = P + 1 ... P + N, the tokens attended to

The model reads the prompt at once (prefill) and then generates one token after the other (decode),
each of which attends to all earlier ones. A decode step's cost grows nearly linearly with its
context, so a few contexts are estimated and the sum is that of straight lines between them.
Errors of all steps are correlated: the interval of a request follows from their joint covariance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from joulecast.families import FAMILIES, is_family, make_family
from joulecast.features import arguments as given
from joulecast.features.arguments import Argument, verb
from joulecast.features.nets import require_torch
from joulecast.features.profiles import load_profile
from joulecast.features.token_axes import READING_TOKENS, make_decode_network, make_prefill_network
from joulecast.records import FLOAT_PRECISIONS, Estimate, Network, Profile, Setup
from joulecast.records.codec import Json, Record, not_stored
from joulecast.system.errors import ArgumentError, InputError, NetError, arg
from joulecast.system.units import (
    JOULES_PER_WH,
    format_duration,
    format_energy,
    format_interval,
    format_wh,
)
from joulecast.views.report import Report, Reportable, Text, make_table
from joulecast.views.words import (
    describe_coverage,
    describe_provenance,
    describe_setup,
    format_level,
    format_with_interval,
)

if TYPE_CHECKING:
    from joulecast.estimators.fitted_profile import FittedProfile
    from joulecast.gp.linalg import Floats

_MOST_TOKENS = 10_000_000
_CONTEXTS = 5
# Share of a decode step's energy above which waiting for the host decides what it costs.
_MOST_HOST_SHARE = 0.5
_EXPLANATION = (
    "Prompt tokens are computed together, and only the last one gets logits. A generated token "
    "reads all weights and the cached keys and values of its context. Sampling and tokenisation "
    "are not included."
)

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
    if isinstance(device, Profile):
        profile = device
    else:
        profile = load_profile(device, on=on or "cpu", store=store)
    fitted = fit_profile(profile, estimator)
    found = estimate_generation(fitted, network, setup, prompt_tokens, new_tokens, level)
    difference = explain_runtime_difference(profile.runtime)
    notes = (*found.notes, difference) if difference else found.notes
    return replace(found, notes=notes, net=net if isinstance(net, str) else network.name)


@dataclass(frozen=True)
class TokenEstimate(Record):
    """One decode step: a token of every sequence of the batch.

    Attributes:
        context: Tokens that the new one attends to.
        token_j: Energy of one token of one sequence.
        token_interval_j: Its credible interval.
        step_s: Duration of the step.
    """

    context: int
    token_j: float
    token_interval_j: tuple[float, float]
    step_s: float


@dataclass(frozen=True)
class GenerationEstimate(Record, Reportable):
    """Prompts and generated tokens of a batch of sequences.

    Attributes:
        prompt_token_j: Energy of one token of a prompt.
        prompt_token_interval_j: Its credible interval.
        prefill_s: Duration until the prompts are read.
        decode: The decode step at a few contexts.
        request_j: Energy of one prompt and the tokens generated after it.
        request_interval_j: Its credible interval.
        request_s: Duration of a batch of requests.
        tokens_per_s: Generated tokens a second, of all sequences together.
    """

    batch: int
    prompt_tokens: int
    new_tokens: int
    prompt_token_j: float
    prompt_token_interval_j: tuple[float, float]
    prefill_s: float
    decode: tuple[TokenEstimate, ...]
    request_j: float
    request_interval_j: tuple[float, float]
    request_s: float
    tokens_per_s: float
    level: float
    device: str
    provenance: str
    covers: str
    estimator: str
    setup: Setup
    notes: tuple[str, ...] = ()
    net: str = not_stored("")

    def to_dict(self) -> Json:
        """Return the estimate as JSON values, with the energy of a thousand requests."""
        per_thousand_wh = 1000.0 * self.request_j / JOULES_PER_WH
        return {**super().to_dict(), "wh_per_1000_requests": per_thousand_wh}

    def report(self) -> Report:
        """Return the energy of a prompt token, of generated tokens and of a request."""
        request = format_with_interval(
            self.request_j, self.request_interval_j, self.level, self.provenance
        )
        sequences = f" for {self.batch:,} sequences at once" if self.batch > 1 else ""
        rows = [
            (
                f"Prompt, {self.prompt_tokens:,} tokens",
                format_energy(self.prompt_token_j),
                format_interval(self.prompt_token_interval_j, format_energy),
                format_duration(self.prefill_s),
            )
        ]
        for token in self.decode:
            interval = format_interval(token.token_interval_j, format_energy)
            step = format_duration(token.step_s)
            rows.append((f"Token {token.context:,}", format_energy(token.token_j), interval, step))
        columns = ("", ">energy per token", f">{format_level(self.level)}", ">duration of the step")
        covers = describe_coverage(self.provenance, self.covers)
        notes = (
            f"Provenance: {describe_provenance(self.provenance)}; {covers}.",
            *self.notes,
            _EXPLANATION,
        )
        return Report(
            f"Generating with {self.net} on {self.device}: {describe_setup(self.setup)}",
            (
                Text(
                    f"A prompt of {self.prompt_tokens:,} tokens and {self.new_tokens:,} generated "
                    f"ones take {request}.",
                    "lead",
                ),
                Text(
                    f"{format_wh(1000.0 * self.request_j)} per 1,000 requests · "
                    f"{format_duration(self.request_s)}{sequences} · "
                    f"{self.tokens_per_s:,.0f} generated tokens/s"
                ),
                make_table(columns, rows),
                *(Text(note, "note") for note in notes),
            ),
            self.provenance,
            "generation",
        )


def estimate_generation(
    profile: FittedProfile,
    network: Network,
    setup: Setup,
    prompt_tokens: int,
    new_tokens: int,
    level: float = 0.95,
) -> GenerationEstimate:
    """Estimate a batch of requests from the profile of a device.

    Args:
        profile: The fitted profile.
        network: A language model that was read at one of ``READING_TOKENS``.
        setup: How it is run; its batch is the number of sequences.
        prompt_tokens: Tokens of each prompt.
        new_tokens: Tokens generated after it.
        level: Probability of the intervals.
    """
    import numpy as np

    from joulecast.gp.lognormal import lognormal_interval

    contexts = _list_contexts(prompt_tokens, new_tokens)
    networks = [
        make_prefill_network(network, prompt_tokens),
        *(make_decode_network(network, context) for context in contexts),
    ]
    found = profile.estimate(networks, setup, level, joint=True)
    assert found.cov is not None
    weights = np.array([1.0, *_weigh_contexts(contexts, new_tokens)]) / setup.batch
    request_j = float(weights @ found.energy_j)
    variance = float(weights @ found.cov @ weights)
    durations_s = np.array([one.duration_s for one in found])
    decode_s = float(weights[1:] @ durations_s[1:]) * setup.batch
    per_prompt = 1.0 / (setup.batch * prompt_tokens)
    prefill = found[0]
    return GenerationEstimate(
        batch=setup.batch,
        prompt_tokens=prompt_tokens,
        new_tokens=new_tokens,
        prompt_token_j=prefill.energy_j * per_prompt,
        prompt_token_interval_j=_scale(prefill.interval_j, per_prompt),
        prefill_s=prefill.duration_s,
        decode=_list_tokens(contexts, found.estimates[1:], setup.batch),
        request_j=request_j,
        request_interval_j=lognormal_interval(request_j, variance, level),
        request_s=prefill.duration_s + decode_s,
        tokens_per_s=setup.batch * new_tokens / decode_s,
        level=level,
        device=prefill.device,
        provenance=prefill.provenance,
        covers=prefill.covers,
        estimator=prefill.estimator,
        setup=setup,
        notes=(
            *dict.fromkeys(note for one in found for note in one.notes),
            *_warn_of_waiting(found[1], setup),
        ),
    )


def read_language_model(net: Any, inputs: Any = None) -> Network:
    """Return a language model's network at the number of tokens that generation starts from.

    Raises:
        InputError: It is a file that cannot be read at another length.
        NetError: It cannot be read, or does not read tokens.
    """
    if isinstance(net, Network):
        return net
    name = str(net) if isinstance(net, str) or hasattr(net, "__fspath__") else ""
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

    error: NetError | None = None
    for tokens in READING_TOKENS:
        try:
            return read_at_tokens(name or net, inputs, tokens)
        except NetError as caught:
            error = error or caught
    assert error is not None
    raise error


def _warn_of_waiting(decode: Estimate, setup: Setup) -> list[str]:
    """Return a warning where the host decides what a generated token costs."""
    if setup.cuda_graphs or (decode.host_share or 0.0) <= _MOST_HOST_SHARE:
        return []
    return [
        "Generated tokens mostly wait for the host. On an H200 such estimates were about twice as "
        "high as measured: do not rely on them; give --cuda-graphs if the model is run so."
    ]


def _list_contexts(prompt_tokens: int, new_tokens: int) -> tuple[int, ...]:
    """Return a few contexts from the first generated token to the last."""
    import numpy as np

    contexts = np.linspace(prompt_tokens + 1, prompt_tokens + new_tokens, _CONTEXTS)
    return tuple(dict.fromkeys(contexts.round().astype(int).tolist()))


def _weigh_contexts(contexts: Sequence[int], tokens: int) -> Floats:
    """Return how many generated tokens each context stands for, by straight lines between them."""
    import numpy as np

    if len(contexts) == 1:
        return np.array([float(tokens)])
    every = np.arange(contexts[0], contexts[-1] + 1)
    unit = np.eye(len(contexts))
    weights = np.array([np.interp(every, contexts, column).sum() for column in unit])
    return np.asarray(weights * tokens / weights.sum())


def _list_tokens(
    contexts: Sequence[int], estimates: Sequence[Estimate], batch: int
) -> tuple[TokenEstimate, ...]:
    return tuple(
        TokenEstimate(
            context,
            one.energy_j / batch,
            _scale(one.interval_j, 1.0 / batch),
            one.duration_s,
        )
        for context, one in zip(contexts, estimates, strict=True)
    )


def _scale(interval: tuple[float, float], factor: float) -> tuple[float, float]:
    return interval[0] * factor, interval[1] * factor
