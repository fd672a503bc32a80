"""Search a family for accurate nets within an energy budget.

SearchSpace ──any sampler──▶ candidates ──BudgetScreener──▶ those within the budget
                                                               │ your function trains one
                                                               ▼
                              SearchResult: Pareto front of score against energy

space     what varies: widths, depths, batch, precision, optimizer, your own parameters
screen    estimates candidates in batches, rules out those that exceed the budget; the report
study     runs an Optuna study on those that remain
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any

from joulecast.features import arguments as given
from joulecast.features.arguments import Argument, choose_setup_fields, verb
from joulecast.features.estimate import find_run_length
from joulecast.features.nets import NetRequest, build_module, check_family, find_training
from joulecast.features.profiles import load_profile
from joulecast.features.run import parse_budget
from joulecast.features.search.screen import (
    Screening,
    SearchResult,
    draw_candidates,
    make_screener,
)
from joulecast.features.search.space import make_search_space, parse_dimension
from joulecast.records import Setup
from joulecast.system.errors import ArgumentError, arg

Family = Annotated[str, Argument("A family of nets; widths in its name are the largest ones.")]
Train = Annotated[
    str | None,
    Argument(
        "Training function: (net, trial) → score; larger is better. It gets a PyTorch module and "
        "Optuna's trial.",
        metavar="FILE.PY:NAME",
        harm="may run code",
    ),
]
Budget = Annotated[
    Any,
    Argument("A share of the original, or energy of a step or run.", metavar="50%|5J|2Wh"),
]
Vary = Annotated[
    Any,
    Argument(
        "c1=8..64/8, batch=16,32, precision=fp32,bf16, lr=1e-4..1e-1/log; one value fixes it.",
        metavar="NAME=VALUES",
        parse=lambda text: dict([parse_dimension(text)]),
        is_repeated=True,
        default="every width and depth from 1 to FAMILY's",
    ),
]
Trials = Annotated[int | None, Argument("Nets to train.", least=1, default="50")]
Sampler = Annotated[Any, Argument("nsga2, tpe, random, gp ...", metavar="NAME", default="nsga2")]
Objective = Annotated[
    str | None,
    Argument(
        "Score against energy, or the score alone.", choices=("pareto", "score"), default="pareto"
    ),
]
Storage = Annotated[
    Any,
    Argument(
        "Optuna storage, like sqlite:///search.db.", metavar="URL", harm="may connect to a server"
    ),
]
StudyName = Annotated[str | None, Argument("Name of the study in the storage.", metavar="NAME")]
Candidates = Annotated[int, Argument("Without --train: random nets to screen.", least=1)]


@verb
def search(
    family: Family,
    score: Callable[[Any, Any], float] | None = None,
    *,
    budget: Budget,
    train: Train = None,
    device: given.DeviceName = "",
    setup: Setup | None = None,
    batch: given.Batch = None,
    input_shape: given.InputShape = None,
    optimizer: given.Optimizer = None,
    precision: given.Precision = None,
    loss: given.Loss = None,
    accumulate: given.Accumulate = None,
    compiled: given.Compiled = None,
    threads: given.Threads = None,
    processor: given.Processor = None,
    cuda_graphs: given.CudaGraphs = None,
    phase: given.Phase = None,
    steps: given.Steps = None,
    inferences: given.Inferences = None,
    epochs: given.Epochs = None,
    samples: given.Samples = None,
    estimator: given.Estimator = "auto",
    level: given.Level = 0.95,
    store: given.Store = None,
    confidence: given.Confidence = 0.5,
    vary: Vary = None,
    trials: Trials = None,
    sampler: Sampler = None,
    objective: Objective = None,
    storage: Storage = None,
    study: StudyName = None,
    seed: given.Seed = 0,
    candidates: Candidates = 1000,
    tries: int = 32,
    on_progress: given.Progress = None,
) -> SearchResult | Screening:
    """Search FAMILY for nets with a high score within an energy budget.

    Candidates that are estimated to exceed the budget are ruled out before training. The others are
    trained by your own function, which gets the net (a PyTorch module) and Optuna's trial, and
    returns a score; larger is better. Without --train the command only lists nets that keep the
    budget.
    """
    options = {"trials": trials, "sampler": sampler, "objective": objective, "storage": storage}
    options = {name: one for name, one in {**options, "study": study}.items() if one is not None}
    if score is None and train is None and options:
        raise ArgumentError(f"{arg(next(iter(options)))} needs {arg('train')}")
    length = find_run_length(steps, inferences, epochs, samples, phase)
    fields = choose_setup_fields(
        phase, optimizer, loss, batch=batch, precision=precision, accumulate=accumulate,
        compiled=compiled, threads=threads, processor=processor, cuda_graphs=cuda_graphs,
    )  # fmt: skip
    check_family(family)
    limit = parse_budget(budget, length)
    profile = load_profile(device, store=store)
    resolved = NetRequest(family, None, setup, input_shape, fields).resolve()[1]
    parts = [vary] if isinstance(vary, Mapping) else vary or ()
    varied = {name: one for part in parts for name, one in part.items()}
    space = make_search_space(family, resolved, varied, input_shape, trains=bool(score or train))
    screener = make_screener(
        profile, space, limit, length, confidence=confidence, estimator=estimator, level=level
    )
    if score is None and train is None:
        screener.check_reachable(seed)
        return draw_candidates(screener, candidates, seed)
    from joulecast.features.search.study import run_study, silence_optuna

    if score is None and train is not None:
        score = find_training(train)
        silence_optuna()
    assert score is not None
    result = run_study(
        screener, score, build_module, seed=seed, tries=tries, on_progress=on_progress, **options
    )
    return replace(result, storage=storage) if isinstance(storage, str) else result
