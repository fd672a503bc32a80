"""Estimate what generating text with a language model costs, before it runs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from joulecast.api.nets import require_torch
from joulecast.api.options import EstimateOptions, MeasureOptions, split_options
from joulecast.api.profiles import load_profile
from joulecast.errors import InputError, NetError
from joulecast.families import FAMILIES, is_family, make_family
from joulecast.generation import READING_TOKENS
from joulecast.records import Network, Profile, Setup

if TYPE_CHECKING:
    from joulecast.api.option_values import DeviceLike
    from joulecast.uses.generate import GenerationEstimate, GenerationRequest


def generate(
    net: Any,
    inputs: Any = None,
    *,
    device: DeviceLike | Profile = "",
    prompt_tokens: int = 512,
    new_tokens: int = 128,
    **options: Any,
) -> GenerationEstimate:
    """Estimate the energy of a prompt, of each generated token, and of a whole request.

    The model reads the prompt at once (prefill) and then generates one token after the other
    (decode), each of which attends to all earlier ones.

    Args:
        net: ``file.py:make_net``, ``package.module:make_net``, a Network of 251 tokens, or a module
            with ``inputs``.
        inputs: For a module, what it is called on; its length does not matter.
        device: A device with a profile, or the profile itself; by default the device ``on``.
        prompt_tokens: Tokens of the prompt.
        new_tokens: Tokens that are generated.
        options: Fields of ``Setup`` (``batch``: sequences at once; ``precision``, bf16 by default;
            ``cuda_graphs``), of ``EstimateOptions``: ``estimator``, ``level``, ``store``; and
            ``on``.
    """
    setup_options, estimating, measuring = split_options(
        generate, options, Setup, EstimateOptions, MeasureOptions
    )
    from joulecast.uses.generate import GenerationRequest

    how, request = EstimateOptions(**estimating), GenerationRequest(prompt_tokens, new_tokens)
    network = read_language_model(net, inputs)
    setup = make_generation_setup(**setup_options)
    if isinstance(device, Profile):
        known = device
    else:
        known = load_profile(device, on=MeasureOptions(**measuring).on, store=how.store)
    return estimate_text(known, network, setup, request, how)


def make_generation_setup(**options: Any) -> Setup:
    """Return how text is generated: one sequence in bf16 unless the options say otherwise."""
    return Setup(**{"batch": 1, "precision": "bf16", **options, "phase": "inference"})


def estimate_text(
    profile: Profile,
    network: Network,
    setup: Setup,
    request: GenerationRequest,
    options: EstimateOptions,
) -> GenerationEstimate:
    """Estimate requests from a profile, with a note if another framework is installed."""
    from joulecast.estimators import fit_profile
    from joulecast.runtimes.installed import explain_runtime_difference
    from joulecast.uses.generate import estimate_generation

    fitted = fit_profile(profile, options.estimator)
    found = estimate_generation(fitted, network, setup, request, options.level)
    difference = explain_runtime_difference(profile.runtime)
    return replace(found, notes=(*found.notes, difference)) if difference else found


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
    from joulecast.runtimes.torch.load import read_at_tokens

    error: NetError | None = None
    for tokens in READING_TOKENS:
        try:
            return read_at_tokens(name or net, inputs, tokens)
        except NetError as caught:
            error = error or caught
    assert error is not None
    raise error
