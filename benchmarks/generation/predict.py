"""Compare estimates of prefill and decode steps with measured ones.

python predict.py truth.jsonl [--profile FILE] [--out results.json]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from language_models import Case, ModelSize, make_model

from joulecast.features.profiles import load_profile
from joulecast.estimators import fit_profile
from joulecast.features.token_axes import READING_TOKENS, make_decode_network, make_prefill_network
from joulecast.records import Network, Setup
from joulecast.runtimes.torch.net_reader import read_net

sys.path.insert(0, str(Path(__file__).parents[1] / "inference_gpu"))
from baselines import RIVALS, LayerRegressions
from error_table import parse_arguments, write_tables


def main() -> None:
    """Print and write the tables."""
    options = parse_arguments()
    lines = options.truth.read_text(encoding="utf-8").splitlines()
    profile = load_profile(options.profile)
    fitted, rivals = fit_profile(profile), LayerRegressions(profile.observations)
    models: dict[str, Network] = {}
    rows = []
    for line in map(json.loads, lines):
        case = Case(**{**line["case"], "model": ModelSize(**line["case"]["model"])})
        if case.model.name not in models:
            models[case.model.name] = read_model(case.model)
        make = make_prefill_network if case.step == "prefill" else make_decode_network
        network = make(models[case.model.name], case.tokens)
        setup = Setup(case.batch, phase="inference", precision="bf16", cuda_graphs=case.cuda_graphs)
        (estimate,) = fitted.estimate([network], setup, details=False)
        low_j, high_j = estimate.interval_j
        shared = {"case": case.key, "step": case.step, "measured_j": line["energy_j"],
                  "measured_s": line["duration_s"]}  # fmt: skip
        shared["mode"] = "graph" if case.cuda_graphs else "eager"
        rows.append({**shared, "method": "shipped profile", "energy_j": estimate.energy_j,
                     "duration_s": estimate.duration_s,
                     "is_inside": low_j <= line["energy_j"] <= high_j})  # fmt: skip
        for name in RIVALS:
            energy_j = rivals.predict(name, network, setup)
            rows.append({**shared, "method": name, "energy_j": energy_j})
    for row in rows:
        if row["method"] == "shipped profile":
            error = 100.0 * (row["energy_j"] / row["measured_j"] - 1.0)
            print(f"{row['case']:44s} {row['measured_j']:9.4g} J {error:+6.1f} %")
    write_tables(rows, "step", options.out)


def read_model(size: ModelSize) -> Network:
    """Return the network of a model without memory for its weights."""
    with torch.device("meta"):
        model = make_model(size)
    tokens = torch.zeros((1, READING_TOKENS[0]), dtype=torch.long)
    return read_net(model, {"input_ids": tokens}, name=size.name)


if __name__ == "__main__":
    main()
