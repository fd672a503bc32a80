"""Read NeuSight's models into network files, so that the benchmark needs no transformers.

    python benchmarks/devices/read_models.py --data FOLDER

writes ``networks/MODEL-MODE-TOKENS.json.gz`` for every model, mode and number of tokens.
"""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path
from typing import Any

from hf_models import INFERENCE, TRAINING, build_model, make_inputs, take_loss

import joulecast
from joulecast.records import Network

FOLDER = Path(__file__).parent / "model_networks"
TOKENS = {"bert": 512, "opt": 2048, "switch_transformers": 512}
"""Tokens that each type of model is measured at; a GPT at the number of its positions."""
# Any would do: networks are per sample, and the batch belongs to the setup.
_BATCH = 2


def main() -> None:
    """Read every model of a data folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with models.json")
    parser.add_argument("--model", action="append", help="read this one only; may be repeated")
    chosen = parser.parse_args()
    models: dict[str, Any] = json.loads((chosen.data / "models.json").read_text())
    for name in chosen.model or models:
        config = models[name]
        tokens = TOKENS.get(config["model_type"]) or config["n_positions"]
        modes = (INFERENCE, TRAINING) if config["model_type"] == "bert" else (TRAINING,)
        for mode in modes:
            network = read_model(config, mode, tokens)
            path = write_network(network, FOLDER / f"{name}-{mode}-{tokens}.json.gz")
            print(f"{path.name}: {len(network.layers)} layers, {path.stat().st_size} bytes")


def read_model(config: dict[str, Any], mode: str, tokens: int) -> Network:
    """Return the network of a model, as Joulecast reads a user's module."""
    module = build_model(config, mode)
    inputs = make_inputs(config, _BATCH, tokens)
    return joulecast.inspect(module, inputs, loss=take_loss)


def write_network(network: Network, path: Path) -> Path:
    """Write a network as compressed JSON, always the same bytes for the same network."""
    text = json.dumps(network.to_dict(), separators=(",", ":"))
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))
    return path


if __name__ == "__main__":
    main()
