"""Build the transformer models that NeuSight measured, as its authors ran them.

NeuSight's models are those of transformers 4.3x under PyTorch 2.1: eager attention, fp32, all
tokens equal to one, no labels. Later releases of transformers compute the same products, but mask
and scale attention scores by other operators. The functions here replace those of the installed
release, so that a model is read with the operators that were measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

Config = Mapping[str, Any]
INFERENCE, TRAINING = "inf", "train"

# Of models with several heads, NeuSight trains one and runs another.
_CLASSES = {
    ("bert", TRAINING): "BertForPreTraining",
    ("bert", INFERENCE): "BertForSequenceClassification",
    ("gpt2", TRAINING): "GPT2LMHeadModel",
    ("gpt2", INFERENCE): "GPT2LMHeadModel",
    ("opt", TRAINING): "OPTForCausalLM",
    ("opt", INFERENCE): "OPTForCausalLM",
    ("switch_transformers", TRAINING): "SwitchTransformersForConditionalGeneration",
    ("switch_transformers", INFERENCE): "SwitchTransformersForConditionalGeneration",
}


def build_model(config: Config, mode: str) -> nn.Module:
    """Return a model without weights (on the meta device), in training mode.

    Args:
        config: Its sizes, as in ``models.json``.
        mode: ``train`` or ``inf``, which decides the head of BERT.
    """
    transformers: Any = import_module("transformers")
    sizes = {name: size for name, size in config.items() if name != "architectures"}
    model_type = sizes.pop("model_type")
    settings = transformers.AutoConfig.for_model(model_type, use_cache=False, **sizes)
    model_class = getattr(transformers, _CLASSES[model_type, mode])
    with torch.device("meta"):
        model: nn.Module = model_class._from_config(settings, attn_implementation="eager")
    _replace_operators(model, model_type)
    return model.train()


def make_inputs(config: Config, batch: int, tokens: int) -> Any:
    """Return what the model is called on: tokens, all of them one."""
    ids = torch.ones(batch, tokens, dtype=torch.long)
    if config["model_type"] != "switch_transformers":
        return ids
    return {"input_ids": ids, "attention_mask": ids, "decoder_input_ids": ids}


def take_loss(output: Any) -> Tensor:
    """Return the cross entropy that NeuSight starts backward from, without labels."""
    found = getattr(output, "prediction_logits", None)
    logits = output.logits if found is None else found
    rows = logits.reshape(-1, logits.shape[-1])
    return nn.functional.cross_entropy(rows, rows.new_ones(len(rows), dtype=torch.long))


def _replace_operators(model: nn.Module, model_type: str) -> None:
    """Let a model mask its scores, and route tokens, as it did when it was measured."""
    name = f"transformers.models.{model_type}.modeling_{model_type}"
    module: Any = import_module(name)
    module.eager_attention_forward = _ATTENTION[model_type]
    if model_type == "switch_transformers":
        module.SwitchTransformersSparseMLP.forward = _route_to_one_expert
    config: Any = model.config
    for layer in model.modules():
        if type(layer).__name__ == "GPT2Attention":
            _add_mask(layer, (1, 1, config.n_positions, config.n_positions), torch.bool)
        elif type(layer).__name__ == "BertSelfAttention":
            _add_mask(layer, (1, 1, 1, config.max_position_embeddings), torch.float32)


def _add_mask(layer: nn.Module, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    mask = torch.ones(shape, dtype=dtype, device="meta")
    layer.register_buffer("mask", mask, persistent=False)


def _attend_gpt2(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any
) -> tuple[Tensor, Tensor]:
    scores = torch.matmul(query, key.transpose(-1, -2)) / query.shape[-1] ** 0.5
    seen = module.mask[:, :, : scores.shape[-2], : scores.shape[-1]]
    scores = torch.where(seen, scores, torch.finfo(scores.dtype).min)
    return _weigh_values(module, scores, value, options["dropout"])


def _attend_bert(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any
) -> tuple[Tensor, Tensor]:
    scores = torch.matmul(query, key.transpose(-1, -2)) / query.shape[-1] ** 0.5
    # All tokens are present, and a mask of zeros is added nevertheless.
    scores = scores + module.mask[..., : scores.shape[-1]]
    return _weigh_values(module, scores, value, options["dropout"])


def _attend_opt(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, **options: Any
) -> tuple[Tensor, Tensor]:
    # Queries were scaled where they were made.
    scores = torch.matmul(query, key.transpose(-1, -2)) + mask
    scores = torch.maximum(scores, scores.new_tensor(torch.finfo(scores.dtype).min))
    return _weigh_values(module, scores, value, options["dropout"])


def _attend_switch(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any
) -> tuple[Tensor, Tensor]:
    # The first layer adds the mask to the position bias of all layers.
    scores = torch.matmul(query, key.transpose(-1, -2)) + options["position_bias"]
    return _weigh_values(module, scores, value, options["dropout"])


def _weigh_values(
    module: Any, scores: Tensor, value: Tensor, dropout: float
) -> tuple[Tensor, Tensor]:
    weights = nn.functional.softmax(scores, dim=-1)
    weights = nn.functional.dropout(weights, p=dropout, training=module.training)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


_ATTENTION: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {
    "bert": _attend_bert,
    "gpt2": _attend_gpt2,
    "opt": _attend_opt,
    "switch_transformers": _attend_switch,
}


def _route_to_one_expert(self: Any, hidden: Tensor) -> Tensor:
    """Run the expert that equal tokens are routed to, up to its capacity for each sequence.

    All tokens have the same embedding, and no position is added to it, so that all have the same
    hidden state and choose the same expert. Tokens beyond its capacity pass unchanged.
    """
    probabilities = nn.functional.softmax(self.router.classifier(hidden), dim=-1)
    capacity = self.router.expert_capacity
    routed, passed = hidden[:, :capacity], hidden[:, capacity:]
    states = torch.cat([self.experts["expert_0"](routed), passed], dim=1)
    weights: Tensor = probabilities.max(dim=-1).values.unsqueeze(-1)
    return weights * states
