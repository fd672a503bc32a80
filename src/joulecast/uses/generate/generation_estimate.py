"""Estimate a prompt and the tokens generated after it, with the interval of a whole request.

    E = E_prefill + Σ_c E_decode(c)       c = P + 1 ... P + N, the tokens attended to

A decode step costs nearly linearly more with its context, so that a few contexts are estimated and
the sum is that of straight lines between them. Errors of all steps are correlated: the interval of
a request follows from their joint covariance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from joulecast.errors import InputError
from joulecast.estimators.fitted_profile import FittedProfile
from joulecast.generation import make_decode_network, make_prefill_network
from joulecast.gp.linalg import Floats
from joulecast.gp.lognormal import lognormal_interval
from joulecast.records import Estimate, Network, Setup
from joulecast.records.codec import Record

MOST_TOKENS = 10_000_000
_CONTEXTS = 5
# Share of a decode step's energy above which waiting for the host decides what it costs.
_MOST_HOST_SHARE = 0.5


@dataclass(frozen=True)
class GenerationRequest:
    """What is generated.

    Attributes:
        prompt_tokens: Tokens of each prompt.
        new_tokens: Tokens generated after it.
    """

    prompt_tokens: int = 512
    new_tokens: int = 128

    def __post_init__(self) -> None:
        for name in ("prompt_tokens", "new_tokens"):
            value = getattr(self, name)
            if not 1 <= value <= MOST_TOKENS:
                raise InputError(f"{name} is {value}: give 1 to {MOST_TOKENS:,} tokens")

    def list_contexts(self) -> tuple[int, ...]:
        """Return a few contexts from the first generated token to the last."""
        first, last = self.prompt_tokens + 1, self.prompt_tokens + self.new_tokens
        return tuple(
            dict.fromkeys(np.linspace(first, last, _CONTEXTS).round().astype(int).tolist())
        )


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
class GenerationEstimate(Record):
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
    notes: tuple[str, ...] = ()


def estimate_generation(
    profile: FittedProfile,
    network: Network,
    setup: Setup,
    request: GenerationRequest,
    level: float = 0.95,
) -> GenerationEstimate:
    """Estimate a batch of requests from the profile of a device.

    Args:
        profile: The fitted profile.
        network: A language model that was read at one of ``READING_TOKENS``.
        setup: How it is run; its batch is the number of sequences.
        request: Lengths of prompt and answer.
        level: Probability of the intervals.
    """
    contexts = request.list_contexts()
    networks = [
        make_prefill_network(network, request.prompt_tokens),
        *(make_decode_network(network, context) for context in contexts),
    ]
    found = profile.estimate(networks, setup, level, joint=True)
    assert found.cov is not None
    weights = np.array([1.0, *_weigh_contexts(contexts, request.new_tokens)]) / setup.batch
    request_j = float(weights @ found.energy_j)
    variance = float(weights @ found.cov @ weights)
    durations_s = np.array([one.duration_s for one in found])
    decode_s = float(weights[1:] @ durations_s[1:]) * setup.batch
    per_prompt = 1.0 / (setup.batch * request.prompt_tokens)
    prefill = found[0]
    return GenerationEstimate(
        batch=setup.batch,
        prompt_tokens=request.prompt_tokens,
        new_tokens=request.new_tokens,
        prompt_token_j=prefill.energy_j * per_prompt,
        prompt_token_interval_j=_scale(prefill.interval_j, per_prompt),
        prefill_s=prefill.duration_s,
        decode=_list_tokens(contexts, found.estimates[1:], setup.batch),
        request_j=request_j,
        request_interval_j=lognormal_interval(request_j, variance, level),
        request_s=prefill.duration_s + decode_s,
        tokens_per_s=setup.batch * request.new_tokens / decode_s,
        level=level,
        device=prefill.device,
        provenance=prefill.provenance,
        covers=prefill.covers,
        estimator=prefill.estimator,
        notes=(
            *dict.fromkeys(note for one in found for note in one.notes),
            *_warn_of_waiting(found[1], setup),
        ),
    )


def _warn_of_waiting(decode: Estimate, setup: Setup) -> list[str]:
    """Return a warning where the host decides what a generated token costs."""
    if setup.cuda_graphs or (decode.host_share or 0.0) <= _MOST_HOST_SHARE:
        return []
    return [
        "Generated tokens mostly wait for the host. On an H200 such estimates were about twice as "
        "high as measured: do not rely on them; give --cuda-graphs if the model is run so."
    ]


def _weigh_contexts(contexts: Sequence[int], tokens: int) -> Floats:
    """Return how many generated tokens each context stands for, by straight lines between them."""
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
