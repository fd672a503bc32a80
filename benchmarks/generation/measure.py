"""Measure prefill and decode steps of language models on a GPU; resumes.

python measure.py OUT.jsonl [--development] [--until SECONDS]
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from language_models import (
    DEVELOPMENT_MODELS,
    TEST_MODELS,
    Case,
    DecodeStep,
    ModelSize,
    PrefillStep,
    list_cases,
    make_model,
)

from joulecast.features.measurers import OwnNetRuntime, open_measurer
from joulecast.features.options import MeasureOptions
from joulecast.kinds import make_layer
from joulecast.records import Input, Network, Observation, Setup, Trial
from joulecast.runtimes.torch.load import LoadedNet


def main() -> None:
    """Measure every case that the file does not contain yet."""
    options = parse_arguments()
    skip_masks_in_graphs()
    started_s = time.monotonic()
    known = read_keys(options.out)
    models = DEVELOPMENT_MODELS if options.development else TEST_MODELS
    with open_measurer(MeasureOptions(on=options.on, meter=options.meter)) as measurer:
        for size in models:
            cases = [case for case in list_cases(size) if case.key not in known]
            if not cases or time.monotonic() - started_s > options.until:
                continue
            model = build_model(size, options.on)
            for case in cases:
                if time.monotonic() - started_s > options.until:
                    break
                loaded = load_case(case, model, options.on)
                own = replace(measurer, runtime=OwnNetRuntime(measurer.runtime, loaded))
                try:
                    observation = own.measure(make_trial(case))
                except Exception as error:
                    print(f"{case.key}: {' '.join(str(error).split())[:200]}", flush=True)
                    continue
                row = {"case": case.to_dict(), **summarise(observation)}
                with options.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
                print(f"{case.key}: {row['energy_j']:.4g} J, {row['duration_s']:.4g} s", flush=True)
            del model
            torch.cuda.empty_cache()


def parse_arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--on", default="cuda:0")
    parser.add_argument("--meter", default="auto")
    parser.add_argument("--development", action="store_true")
    parser.add_argument("--until", type=float, default=500.0)
    return parser.parse_args()


def skip_masks_in_graphs() -> None:
    """Make transformers leave out causal masks that attention needs not, also in a CUDA graph.

    While a graph is captured it would otherwise write a mask, repeat the keys of grouped queries,
    and run another attention kernel than in eager mode.
    """
    import transformers.masking_utils as masks

    # Masks of packed sequences would have to be read by the host.
    cast("Any", masks).is_tracing = lambda tensor=None: tensor is not None and tensor.dim() > 1


def read_keys(path: Path) -> set[str]:
    """Return the keys of the cases that a file contains."""
    if not path.exists():
        return set()
    rows = [json.loads(line)["case"] for line in path.read_text(encoding="utf-8").splitlines()]
    return {Case(**{**row, "model": ModelSize(**row["model"])}).key for row in rows}


def build_model(size: ModelSize, on: str) -> torch.nn.Module:
    """Return the model in bf16 with small random weights, made on the device."""
    with torch.device("meta"):
        model = make_model(size).to(torch.bfloat16)
    model = model.to_empty(device=on)
    # Buffers, such as the frequencies of rotary embeddings, are not weights: make them anew.
    with torch.device(on):
        fresh = make_model(replace(size, layers=1, hidden=size.hidden, vocabulary=64))
    buffers = dict(fresh.named_buffers())
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            known = buffers.get(name)
            buffer.copy_(known) if known is not None else buffer.zero_()
        for weight in model.parameters():
            weight.normal_(0.0, 0.02)
    return model


def load_case(case: Case, model: torch.nn.Module, on: str) -> LoadedNet:
    """Return the module and inputs of a case."""
    tokens = case.tokens if case.step == "prefill" else 1
    inputs = torch.ones((case.batch, tokens), dtype=torch.long, device=on)
    if case.step == "prefill":
        return LoadedNet(PrefillStep(model), inputs, None)
    return LoadedNet(DecodeStep(model, case.batch, case.tokens), inputs, None)


def make_trial(case: Case) -> Trial:
    """Return a trial that names the case: the module runs in place of its network."""
    layer = make_layer("linear", cin=case.model.hidden, cout=case.model.hidden)
    network = Network((layer,), Input((case.model.hidden,)), name=case.key)
    setup = Setup(case.batch, phase="inference", precision="bf16", cuda_graphs=case.cuda_graphs)
    return Trial(network, setup)


def summarise(observation: Observation) -> dict[str, Any]:
    """Return what was measured, with its device."""
    names = ("energy_j", "energy_sd_j", "duration_s", "duration_sd_s", "issue_s", "count")
    row = {name: getattr(observation, name) for name in names}
    return {**row, "unit": observation.device.unit, "runtime": observation.runtime}


if __name__ == "__main__":
    main()
