"""Language models: decoders, an encoder, an encoder-decoder, a mixture of experts, LoRA."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training_examples import TrainingExample, take_loss, take_second

# ---------------------------------------------------------------------------------------------
# GPT-2 medium, written like the small educational GPTs


class GptAttention(nn.Module):
    """Causal attention with one projection to queries, keys and values."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        shape = (batch, tokens, self.heads, width // self.heads)
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.c_attn(x).split(width, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.c_proj(y.transpose(1, 2).contiguous().view(batch, tokens, width))
        return out


class GptBlock(nn.Module):
    """Attention and an MLP, each after a layer norm."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(width), GptAttention(width, heads)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width),
            nn.GELU(approximate="tanh"),
            nn.Linear(4 * width, width),
            nn.Dropout(dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt(nn.Module):
    """A GPT with tied embeddings that returns its logits and its loss."""

    def __init__(self, vocab: int, context: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.drop = nn.Dropout(0.1)
        self.h = nn.ModuleList(GptBlock(width, heads, 0.1) for _ in range(depth))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocab, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, ids: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        places = torch.arange(ids.shape[1], device=ids.device)
        x = self.drop(self.wte(ids) + self.wpe(places))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return logits, F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def make_gpt2_medium(batch: int) -> TrainingExample:
    """Return a GPT-2 medium: 24 layers, 1,024 wide, 1,024 tokens."""
    vocab, tokens = 50304, 1024
    text = torch.randint(0, vocab, (batch, tokens + 1))
    net = Gpt(vocab, tokens, width=1024, depth=24, heads=16)
    return TrainingExample(net, (text[:, :-1].contiguous(), text[:, 1:].contiguous()), take_second)


# ---------------------------------------------------------------------------------------------
# A Llama with grouped queries, and the same with a mixture of experts


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary position embeddings to (batch, heads, tokens, head width)."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class GroupedAttention(nn.Module):
    """Causal attention whose keys and values are shared by groups of heads."""

    cos: Tensor
    sin: Tensor

    def __init__(self, width: int, heads: int, kv_heads: int, context: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, width // heads
        self.wq = nn.Linear(width, width, bias=False)
        self.wk = nn.Linear(width, kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(width, kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(width, width, bias=False)
        rates = 10000.0 ** (-torch.arange(0, self.head_dim, 2) / self.head_dim)
        angles = torch.outer(torch.arange(context).float(), rates).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        q = self.wq(x).view(batch, tokens, self.heads, self.head_dim).transpose(1, 2)
        k = self.wk(x).view(batch, tokens, self.kv_heads, self.head_dim).transpose(1, 2)
        v = self.wv(x).view(batch, tokens, self.kv_heads, self.head_dim).transpose(1, 2)
        cos, sin = self.cos[:tokens].to(q.dtype), self.sin[:tokens].to(q.dtype)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        repeats = self.heads // self.kv_heads
        k, v = k.repeat_interleave(repeats, dim=1), v.repeat_interleave(repeats, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.wo(y.transpose(1, 2).reshape(batch, tokens, width))
        return out


class SwiGlu(nn.Module):
    """A gated MLP."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(width, hidden, bias=False)
        self.w2 = nn.Linear(hidden, width, bias=False)
        self.w3 = nn.Linear(width, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.w2(F.silu(self.w1(x)) * self.w3(x))
        return out


class ExpertLoop(nn.Module):
    """A mixture of experts: each token takes the two best, experts run one after the other."""

    def __init__(self, width: int, hidden: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(SwiGlu(width, hidden) for _ in range(experts))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        weights, chosen = self.router(flat).float().softmax(dim=-1).topk(2, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            token, place = torch.where(chosen == number)
            result = expert(flat[token]) * weights[token, place, None]
            out.index_add_(0, token, result.to(out.dtype))
        return out.view_as(x)


class LlamaBlock(nn.Module):
    """Attention and an MLP or experts, each after an RMS norm."""

    def __init__(self, width: int, attention: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.RMSNorm(width, eps=1e-5), attention
        self.ffn_norm, self.feed_forward = nn.RMSNorm(width, eps=1e-5), mlp

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    """A decoder of given blocks that returns its logits."""

    def __init__(self, vocab: int, width: int, blocks: list[LlamaBlock]) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(blocks)
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.output = nn.Linear(width, vocab, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.layers:
            x = block(x)
        logits: Tensor = self.output(self.norm(x))
        return logits


def make_llama_gqa(batch: int) -> TrainingExample:
    """Return a Llama of 0.7 billion parameters: 14 layers, 2,048 wide, 32 heads in 8 groups."""
    width, tokens, vocab = 2048, 2048, 32000
    blocks = [
        LlamaBlock(width, GroupedAttention(width, 32, 8, tokens), SwiGlu(width, 5632))
        for _ in range(14)
    ]
    return TrainingExample(Llama(vocab, width, blocks), torch.randint(0, vocab, (batch, tokens)))


def make_moe_decoder(batch: int) -> TrainingExample:
    """Return a decoder of 8 layers, each with 8 experts of which a token takes two."""
    width, tokens, vocab = 768, 512, 32000
    blocks = [
        LlamaBlock(width, GroupedAttention(width, 12, 4, tokens), ExpertLoop(width, 2048, 8))
        for _ in range(8)
    ]
    return TrainingExample(Llama(vocab, width, blocks), torch.randint(0, vocab, (batch, tokens)))


# ---------------------------------------------------------------------------------------------
# Models of the transformers library


def make_t5_base(batch: int) -> TrainingExample:
    """Return a T5 v1.1 base: 512 tokens read, 128 written."""
    library: Any = import_module("transformers")

    config = library.T5Config(
        vocab_size=32128,
        d_model=768,
        d_kv=64,
        d_ff=2048,
        num_layers=12,
        num_heads=12,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
        decoder_start_token_id=0,
    )
    inputs = {
        "input_ids": torch.randint(0, config.vocab_size, (batch, 512)),
        "labels": torch.randint(0, config.vocab_size, (batch, 128)),
    }
    return TrainingExample(library.T5ForConditionalGeneration(config), inputs, take_loss)


def make_electra_large(batch: int) -> TrainingExample:
    """Return an ELECTRA discriminator: a large BERT that marks replaced tokens."""
    library: Any = import_module("transformers")

    config = library.ElectraConfig(
        embedding_size=1024,
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        intermediate_size=4096,
    )
    shape = (batch, 256)
    inputs = {
        "input_ids": torch.randint(0, config.vocab_size, shape),
        "attention_mask": torch.ones(shape, dtype=torch.long),
        "labels": torch.randint(0, 2, shape),
    }
    return TrainingExample(library.ElectraForPreTraining(config), inputs, take_loss)


class LoraLinear(nn.Module):
    """A frozen linear layer with a trained low-rank update."""

    def __init__(self, base: nn.Linear, rank: int = 16, scale: float = 2.0) -> None:
        super().__init__()
        self.base, self.scale = base.requires_grad_(False), scale
        self.dropout = nn.Dropout(0.05)
        self.lora_a = nn.Linear(base.in_features, rank, bias=False)
        self.lora_b = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.lora_b.weight)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x) + self.scale * self.lora_b(self.lora_a(self.dropout(x)))
        return out


def make_olmo_lora(batch: int) -> TrainingExample:
    """Return a frozen OLMo of a billion parameters with LoRA on queries and values."""
    library: Any = import_module("transformers")

    config = library.OlmoConfig(
        vocab_size=50304,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=16,
        use_cache=False,
    )
    net = library.OlmoForCausalLM(config)
    net.requires_grad_(False)
    for layer in net.model.layers:
        layer.self_attn.q_proj = LoraLinear(layer.self_attn.q_proj)
        layer.self_attn.v_proj = LoraLinear(layer.self_attn.v_proj)
    ids = torch.randint(0, config.vocab_size, (batch, 1024))
    return TrainingExample(net, {"input_ids": ids, "labels": ids.clone()}, take_loss)
