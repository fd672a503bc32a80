"""``joulecast generate NET``: estimate what generating text costs before it runs."""

from __future__ import annotations

from dataclasses import dataclass

import click

from joulecast.cli import options
from joulecast.cli.option_records import collect
from joulecast.cli.output import OutputOptions, write_result
from joulecast.cli.print_generation import print_generation
from joulecast.features.generate import estimate_text, make_generation_setup, read_language_model
from joulecast.features.options import EstimateOptions
from joulecast.features.profiles import load_profile
from joulecast.records import FLOAT_PRECISIONS
from joulecast.units import JOULES_PER_WH
from joulecast.uses.generate import MOST_TOKENS, GenerationRequest

_TOKENS = click.IntRange(1, MOST_TOKENS)


@dataclass(frozen=True)
class ModelOptions:
    """How a language model is run.

    Attributes:
        batch: Sequences at once.
        precision: Number format of weights and activations.
        cuda_graphs: Whether each step is replayed as a CUDA graph.
    """

    batch: int
    precision: str
    cuda_graphs: bool


@click.command()
@click.argument("net")
@collect(
    "request",
    GenerationRequest,
    click.option(
        "--prompt-tokens", type=_TOKENS, default=512, show_default=True, help="Tokens of a prompt."
    ),
    click.option(
        "--new-tokens",
        type=_TOKENS,
        default=128,
        show_default=True,
        help="Tokens generated after it.",
    ),
)
@collect(
    "model",
    ModelOptions,
    click.option(
        "--batch", type=int, default=1, show_default=True, help="Sequences at the same time."
    ),
    click.option(
        "--precision",
        type=click.Choice(FLOAT_PRECISIONS),
        default="bf16",
        show_default=True,
        help="Number format of weights and activations.",
    ),
    options.cuda_graphs,
)
@options.device
@options.make_on("Device of this machine, instead of --device: cpu, cuda:0 or simulated:7.")
@options.estimating
@options.output
def generate(
    net: str,
    request: GenerationRequest,
    model: ModelOptions,
    device: str,
    on: str,
    estimating: EstimateOptions,
    output: OutputOptions,
) -> None:
    """Estimate the energy of a prompt and of each token that NET generates after it.

    NET is file.py:make_net or package.module:make_net: a function that returns a language model and
    example inputs. The prompt is read at once; then each new token attends to all earlier ones,
    whose keys and values are cached.
    """
    network = read_language_model(net)
    setup = make_generation_setup(
        batch=model.batch, precision=model.precision, cuda_graphs=model.cuda_graphs
    )
    profile = load_profile(device, on=on, store=estimating.store)
    found = estimate_text(profile, network, setup, request, estimating)
    per_thousand_wh = 1000.0 * found.request_j / JOULES_PER_WH
    data = {
        **found.to_dict(),
        "setup": setup.to_dict(),
        "wh_per_1000_requests": per_thousand_wh,
    }
    write_result(output, data, lambda: print_generation(net, setup, found))
