"""Language models of the third test: decoders, a state-space model, fine-tuning, a summarizer."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from language_networks import LoraLinear, SwiGlu, rotate
from torch import Tensor, nn

from training_examples import TrainingExample, take_loss

# ---------------------------------------------------------------------------------------------
# A decoder with compressed keys and values


class LatentAttention(nn.Module):
    """Causal attention whose queries, keys and values come from short codes, as in DeepSeek.

    Only a part of each query and key is rotated; the rotated part of the keys is shared by all
    heads. Values are padded to the width of the keys, so that the fast kernels can be used.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, width: int, heads: int, context: int, plain: int = 64) -> None:
        super().__init__()
        self.heads, self.plain, self.turned = heads, plain, plain // 2
        self.code_q, self.code_kv = width // 2, width // 4
        self.down_q = nn.Linear(width, self.code_q, bias=False)
        self.norm_q, self.norm_kv = nn.RMSNorm(self.code_q), nn.RMSNorm(self.code_kv)
        self.up_q = nn.Linear(self.code_q, heads * (plain + self.turned), bias=False)
        self.down_kv = nn.Linear(width, self.code_kv + self.turned, bias=False)
        self.up_kv = nn.Linear(self.code_kv, heads * 2 * plain, bias=False)
        self.out = nn.Linear(heads * plain, width, bias=False)
        rates = 10000.0 ** (-torch.arange(0, self.turned, 2) / self.turned)
        angles = torch.outer(torch.arange(context).float(), rates).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        shape = (batch, tokens, self.heads, -1)
        q = self.up_q(self.norm_q(self.down_q(x))).view(shape).transpose(1, 2)
        q, q_turned = q.split([self.plain, self.turned], dim=-1)
        code, k_turned = self.down_kv(x).split([self.code_kv, self.turned], dim=-1)
        k, v = self.up_kv(self.norm_kv(code)).view(shape).transpose(1, 2).chunk(2, dim=-1)
        cos, sin = self.cos[:tokens].to(k.dtype), self.sin[:tokens].to(k.dtype)
        q_turned = rotate(q_turned, cos, sin)
        k_turned = rotate(k_turned.unsqueeze(1), cos, sin).expand(-1, self.heads, -1, -1)
        q, k = torch.cat((q, q_turned), dim=-1), torch.cat((k, k_turned), dim=-1)
        y = F.scaled_dot_product_attention(q, k, F.pad(v, (0, self.turned)), is_causal=True)
        y = y[..., : self.plain].transpose(1, 2).reshape(batch, tokens, -1)
        out: Tensor = self.out(y)
        return out


class LatentBlock(nn.Module):
    """Attention on short codes and a gated MLP, each after an RMS norm."""

    def __init__(self, width: int, heads: int, context: int, hidden: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention = LatentAttention(width, heads, context)
        self.mlp = SwiGlu(width, hidden)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


def make_latent_attention(batch: int) -> TrainingExample:
    """Return a decoder of 12 layers, 1,024 wide with 16 heads, for 1,024 tokens."""
    width, tokens, vocab = 1024, 1024, 50304
    net = nn.Sequential(
        nn.Embedding(vocab, width),
        *(LatentBlock(width, 16, tokens, hidden=2816) for _ in range(12)),
        nn.RMSNorm(width),
        nn.Linear(width, vocab, bias=False),
    )
    return TrainingExample(net, torch.randint(0, vocab, (batch, tokens)))


# ---------------------------------------------------------------------------------------------
# A state-space model


def sum_segments(x: Tensor) -> Tensor:
    """Return the sums of x from each place to each later one, minus infinity before it."""
    total = x.cumsum(dim=-1)
    sums = total.unsqueeze(-1) - total.unsqueeze(-2)
    later = torch.ones(sums.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
    return sums.masked_fill(later, float("-inf"))


def scan_states(x: Tensor, decay: Tensor, b: Tensor, c: Tensor, chunk: int) -> Tensor:
    """Run the recurrence of Mamba-2 by products of matrices within and between chunks.

    Args:
        x: Inputs (batch, tokens, heads, width of a head).
        decay: Logarithm of each step's decay (batch, tokens, heads).
        b: What is written to the states (batch, tokens, size of a state).
        c: What is read from them, of the same shape.
        chunk: Tokens of a chunk.
    """
    batch, tokens, heads, width = x.shape
    b, c = (one.view(batch, -1, 1, chunk, one.shape[-1]) for one in (b, c))
    x = x.view(batch, -1, chunk, heads, width).transpose(2, 3)
    decay = decay.view(batch, -1, chunk, heads).transpose(2, 3)
    total = decay.cumsum(dim=-1)
    inner = (c @ b.transpose(-1, -2) * torch.exp(sum_segments(decay))) @ x
    to_end = torch.exp(total[..., -1:] - total).unsqueeze(-1)
    states = (x * to_end).transpose(-1, -2) @ b
    # The state before each chunk: all earlier ones, each decayed by the chunks in between.
    between = sum_segments(F.pad(total[..., -1].transpose(1, 2), (1, 0)))[..., :-1, :-1]
    before = F.pad(states, (0, 0, 0, 0, 0, 0, 1, 0))[:, :-1].transpose(1, 2)
    before = (torch.exp(between) @ before.flatten(3)).view(before.shape).transpose(1, 2)
    outer = (c @ before.transpose(-1, -2)) * torch.exp(total).unsqueeze(-1)
    return (inner + outer).transpose(2, 3).reshape(batch, tokens, heads, width)


class StateSpaceBlock(nn.Module):
    """A block of Mamba-2 in plain PyTorch: one projection, a short convolution, the scan."""

    def __init__(self, width: int, state: int, head_dim: int = 64, chunk: int = 128) -> None:
        super().__init__()
        self.inner, self.state, self.chunk = 2 * width, state, chunk
        self.heads, self.head_dim = self.inner // head_dim, head_dim
        mixed = self.inner + 2 * state
        self.norm = nn.RMSNorm(width)
        self.in_proj = nn.Linear(width, self.inner + mixed + self.heads, bias=False)
        self.conv = nn.Conv1d(mixed, mixed, 4, padding=3, groups=mixed)
        self.dt_bias = nn.Parameter(torch.empty(self.heads).uniform_(-6.9, -2.3))
        self.a_log = nn.Parameter(torch.empty(self.heads).uniform_(1.0, 16.0).log())
        self.skip = nn.Parameter(torch.ones(self.heads))
        self.gate_norm = nn.RMSNorm(self.inner)
        self.out_proj = nn.Linear(self.inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        sizes = [self.inner, self.inner + 2 * self.state, self.heads]
        gate, mixed, dt = self.in_proj(self.norm(x)).split(sizes, dim=-1)
        mixed = F.silu(self.conv(mixed.transpose(1, 2))[..., :tokens].transpose(1, 2))
        inputs, b, c = mixed.split([self.inner, self.state, self.state], dim=-1)
        dt = F.softplus(dt.float() + self.dt_bias)
        inputs = inputs.reshape(batch, tokens, self.heads, self.head_dim)
        scaled = inputs * dt.unsqueeze(-1)
        y = scan_states(scaled, -dt * self.a_log.exp(), b, c, self.chunk)
        y = (y + inputs * self.skip.unsqueeze(-1)).reshape(batch, tokens, self.inner)
        out: Tensor = x + self.out_proj(self.gate_norm(y * F.silu(gate)))
        return out


def make_state_space(batch: int) -> TrainingExample:
    """Return a Mamba-2 of 16 layers, 768 wide with states of 64, for 1,024 tokens."""
    width, vocab = 768, 50280
    net = nn.Sequential(
        nn.Embedding(vocab, width),
        *(StateSpaceBlock(width, state=64) for _ in range(16)),
        nn.RMSNorm(width),
        nn.Linear(width, vocab, bias=False),
    )
    return TrainingExample(net, torch.randint(0, vocab, (batch, 1024)))


# ---------------------------------------------------------------------------------------------
# Models of the transformers library


def make_pegasus(batch: int) -> TrainingExample:
    """Return a Pegasus base that summarizes 512 tokens in 128."""
    library: Any = import_module("transformers")

    config = library.PegasusConfig(
        vocab_size=96103,
        d_model=768,
        encoder_layers=12,
        decoder_layers=12,
        encoder_attention_heads=12,
        decoder_attention_heads=12,
        encoder_ffn_dim=3072,
        decoder_ffn_dim=3072,
        max_position_embeddings=512,
        scale_embedding=True,
        use_cache=False,
    )
    inputs = {
        "input_ids": torch.randint(2, config.vocab_size, (batch, 512)),
        "attention_mask": torch.ones(batch, 512, dtype=torch.long),
        "labels": torch.randint(2, config.vocab_size, (batch, 128)),
    }
    return TrainingExample(library.PegasusForConditionalGeneration(config), inputs, take_loss)


def make_albert_qa(batch: int) -> TrainingExample:
    """Return an ALBERT base, one layer used twelve times, that finds answers in 384 tokens."""
    library: Any = import_module("transformers")

    config = library.AlbertConfig(
        vocab_size=30000,
        embedding_size=128,
        hidden_size=768,
        num_hidden_layers=12,
        num_attention_heads=12,
        intermediate_size=3072,
    )
    inputs = {
        "input_ids": torch.randint(5, config.vocab_size, (batch, 384)),
        "attention_mask": torch.ones(batch, 384, dtype=torch.long),
        "token_type_ids": (torch.arange(384) >= 64).long().repeat(batch, 1),
        "start_positions": torch.randint(64, 384, (batch,)),
        "end_positions": torch.randint(64, 384, (batch,)),
    }
    return TrainingExample(library.AlbertForQuestionAnswering(config), inputs, take_loss)


def make_qwen_lora(batch: int) -> TrainingExample:
    """Return half of a frozen Qwen2.5 1.5B with LoRA on all linear layers of its blocks."""
    library: Any = import_module("transformers")

    config = library.Qwen2Config(
        vocab_size=151936,
        hidden_size=1536,
        intermediate_size=8960,
        num_hidden_layers=14,
        num_attention_heads=12,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        use_cache=False,
    )
    net = library.Qwen2ForCausalLM(config)
    net.requires_grad_(False)
    for layer in net.model.layers:
        for part in (layer.self_attn, layer.mlp):
            for name, linear in list(part.named_children()):
                if isinstance(linear, nn.Linear):
                    setattr(part, name, LoraLinear(linear))
    ids = torch.randint(0, config.vocab_size, (batch, 1024))
    return TrainingExample(net, {"input_ids": ids, "labels": ids.clone()}, take_loss)
