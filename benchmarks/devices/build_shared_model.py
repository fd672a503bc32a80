"""Fit the model that several GPUs share, and write it where the package ships it.

    python benchmarks/devices/build_shared_model.py --data FOLDER

FOLDER has NeuSight's tables; energies, and the host, are those of the shipped profile of an H200.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

from neusight_data import read_kernels, read_steps
from published_steps import read_published_steps
from shared_devices import H200, collect_devices, collect_metered

from joulecast.errors import InputError
from joulecast.estimators import find_estimator, load_fit
from joulecast.estimators.additive.data_sheets import (
    SHARED_FIT,
    fit_shared_model,
)
from joulecast.estimators.additive.estimator import FittedAdditive
from joulecast.estimators.additive.host_time import HostTimeModel
from joulecast.files import read_profile
from joulecast.kinds import HOST_CALLS
from joulecast.store.shipped import SHIPPED

NOTICE = (
    "Durations of kernels and steps on P4, P100, V100, T4, A100, MI100 and MI210 are those of "
    "NeuSight (Lee, Phanishayee and Mahajan, ASPLOS 2025), Copyright (c) 2025 Georgia "
    "Institute of Technology and Microsoft Corporation, MIT licence; durations of image models on "
    "RTX 3090, 4090 and 5090 are those of timm (huggingface/pytorch-image-models, Apache-2.0), of "
    "BERT and ResNet-50 on twelve GPUs those of Lambda (lambdal/deeplearning-benchmark); powers "
    "are Joulecast's own, of an H200."
)


def main() -> None:
    """Fit the model and write it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of NeuSight's tables")
    parser.add_argument("--out", type=Path, default=SHARED_FIT, help="file to write")
    arguments = parser.parse_args()
    try:
        devices = collect_devices(
            read_kernels(arguments.data), [*read_steps(arguments.data), *read_published_steps()]
        )
    except InputError as error:
        sys.exit(str(error))
    model = fit_shared_model(devices, collect_metered(), find_host_time(), NOTICE)
    arguments.out.parent.mkdir(exist_ok=True)
    data = model.to_dict()
    arguments.out.write_text(json.dumps(data, separators=(",", ":")) + "\n", encoding="utf-8")
    rows = model.duration.observations.size, model.power.observations.size
    print(f"{len(devices)} devices, {rows[0]} durations, {rows[1]} powers: {arguments.out}")


def find_host_time() -> HostTimeModel:
    """Return the host of the shipped H200 profile, for training and inference."""
    fitted = load_fit(read_profile(SHIPPED / f"{H200}.json"), find_estimator("additive"))
    assert isinstance(fitted, FittedAdditive)
    training = fitted.host_time
    inference = fitted.for_phase("inference").model.host_time
    per_call_s = tuple(
        (inference if name.startswith("inference") else training).per_call_s[at]
        for at, name in enumerate(HOST_CALLS)
    )
    factors = {**inference.structure_factors, **training.structure_factors}
    return replace(training, per_call_s=per_call_s, structure_factors=factors)


if __name__ == "__main__":
    main()
