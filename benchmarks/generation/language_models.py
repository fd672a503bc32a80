"""Language models of transformers by their sizes, and the two steps of text generation."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class ModelSize:
    """The sizes of a language model."""

    architecture: str
    hidden: int
    feed_forward: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int

    @property
    def name(self) -> str:
        """A short name, such as ``llama-2048x22``."""
        return f"{self.architecture}-{self.hidden}x{self.layers}"


@dataclass(frozen=True)
class Case:
    """One step of generation that is measured.

    Attributes:
        step: ``prefill`` or ``decode``.
        batch: Sequences at once.
        tokens: Tokens of the prompt, or that the new token attends to.
        cuda_graphs: Whether the step is replayed as a CUDA graph.
    """

    model: ModelSize
    step: str
    batch: int
    tokens: int
    cuda_graphs: bool

    @property
    def key(self) -> str:
        """A name for files and tables."""
        mode = "graph" if self.cuda_graphs else "eager"
        return f"{self.model.name} {self.step} {self.batch}x{self.tokens} {mode}"

    def to_dict(self) -> dict[str, Any]:
        """Return the case as JSON."""
        return asdict(self)


# Chosen before anything was measured: published models of five architectures.
TEST_MODELS = (
    ModelSize("qwen2", 896, 4864, 24, 14, 2, 151936),  # Qwen2-0.5B
    ModelSize("gpt2", 1024, 4096, 24, 16, 16, 50257),  # GPT-2 medium
    ModelSize("llama", 2048, 5632, 22, 32, 4, 32000),  # TinyLlama-1.1B
    ModelSize("gpt_neox", 2048, 8192, 24, 16, 16, 50304),  # Pythia-1.4B
    ModelSize("llama", 3072, 8192, 28, 24, 8, 128256),  # Llama-3.2-3B
    ModelSize("mistral", 4096, 14336, 32, 32, 8, 32768),  # Mistral-7B
)
# Looked at while the method was made.
DEVELOPMENT_MODELS = (
    ModelSize("llama", 1536, 4096, 12, 12, 4, 49152),
    ModelSize("gpt2", 768, 3072, 12, 12, 12, 50257),
)


def list_cases(model: ModelSize) -> tuple[Case, ...]:
    """Return the measured steps of a model; graphs first, as servers run them."""
    longest = 1024 if model.architecture == "gpt2" else 4096
    graphs = (
        ("decode", 1, 512),
        ("decode", 1, longest),
        ("decode", 16, longest // 2),
        ("prefill", 1, 512),
        ("prefill", 4, longest // 2),
    )
    eager = (("decode", 1, 512), ("prefill", 4, longest // 2))
    return (
        *(Case(model, *one, cuda_graphs=True) for one in graphs),
        *(Case(model, *one, cuda_graphs=False) for one in eager),
    )


def make_model(size: ModelSize) -> nn.Module:
    """Return the model with the weights of the default device, which may be ``meta``."""
    from transformers import AutoConfig, AutoModelForCausalLM

    names = {"gpt2": _name_gpt2, "gpt_neox": _name_neox}.get(size.architecture, _name_llama)
    config = AutoConfig.for_model(size.architecture, **names(size))
    config.bos_token_id = config.eos_token_id = 1
    config.pad_token_id = None
    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()


class PrefillStep(nn.Module):
    """Reads a prompt and returns the logits of its last token."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=input_ids, use_cache=True, logits_to_keep=1).logits


class DecodeStep(nn.Module):
    """Computes one token again and again at the same context: the cache does not grow."""

    def __init__(self, model: nn.Module, batch: int, context: int) -> None:
        super().__init__()
        from transformers import DynamicCache

        self.model = model
        make_cache: Any = DynamicCache
        self.cache = make_cache()
        device = next(model.parameters()).device
        prompt = torch.ones((1, 8), dtype=torch.long, device=device)
        with torch.no_grad():
            model(input_ids=prompt, use_cache=True, past_key_values=self.cache)
        self.cached = [self._fill(layer.keys, batch, context - 1) for layer in self.cache.layers]

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        for layer, (keys, values) in zip(self.cache.layers, self.cached, strict=True):
            layer.keys, layer.values = keys, values
        out = self.model(input_ids=input_ids, use_cache=True, past_key_values=self.cache)
        return out.logits

    @staticmethod
    def _fill(like: torch.Tensor, batch: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        shape = (batch, like.shape[1], tokens, like.shape[3])
        keys, values = (torch.randn(shape, dtype=like.dtype, device=like.device) for _ in "kv")
        return keys, values


def _name_llama(size: ModelSize) -> dict[str, Any]:
    return {
        "hidden_size": size.hidden,
        "intermediate_size": size.feed_forward,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads,
        "vocab_size": size.vocabulary,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": size.hidden < 1024,
        "sliding_window": None,
    }


def _name_neox(size: ModelSize) -> dict[str, Any]:
    names = _name_llama(size)
    return {key: value for key, value in names.items() if key != "num_key_value_heads"}


def _name_gpt2(size: ModelSize) -> dict[str, Any]:
    return {
        "n_embd": size.hidden,
        "n_inner": size.feed_forward,
        "n_layer": size.layers,
        "n_head": size.heads,
        "vocab_size": size.vocabulary,
        "n_positions": 4096,
    }
