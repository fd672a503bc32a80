"""Language models of the second test: decoders, encoders, experts, an adapter, a tagger."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from language_networks import rotate
from torch import Tensor, nn

from training_examples import TrainingExample, take_loss

# ---------------------------------------------------------------------------------------------
# A small GPT as in training contests: norms without weights, squared ReLUs, capped logits


class NormedAttention(nn.Module):
    """Causal attention with rotated queries and keys that are normalized first."""

    cos: Tensor
    sin: Tensor

    def __init__(self, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, width // heads
        self.c_q, self.c_k, self.c_v, self.c_proj = (
            nn.Linear(width, width, bias=False) for _ in range(4)
        )
        rates = 10000.0 ** (-torch.arange(0, self.head_dim, 2) / self.head_dim)
        angles = torch.outer(torch.arange(context).float(), rates).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        shape = (batch, tokens, self.heads, self.head_dim)
        q, k, v = (layer(x).view(shape).transpose(1, 2) for layer in (self.c_q, self.c_k, self.c_v))
        q, k = (F.rms_norm(one, (self.head_dim,)) for one in (q, k))
        cos, sin = self.cos[:tokens].to(v.dtype), self.sin[:tokens].to(v.dtype)
        q, k = (rotate(one.to(v.dtype), cos, sin) for one in (q, k))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.c_proj(y.transpose(1, 2).reshape(batch, tokens, width))
        return out


class ContestBlock(nn.Module):
    """Attention and an MLP with squared ReLUs."""

    def __init__(self, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.width = width
        self.attn = NormedAttention(width, heads, context)
        self.c_fc = nn.Linear(width, 4 * width, bias=False)
        self.c_proj = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(F.rms_norm(x, (self.width,)))
        hidden = F.relu(self.c_fc(F.rms_norm(x, (self.width,)))).square()
        out: Tensor = x + self.c_proj(hidden)
        return out


class ContestGpt(nn.Module):
    """A decoder whose logits are capped by a hyperbolic tangent."""

    def __init__(self, vocab: int, width: int, depth: int, heads: int, context: int) -> None:
        super().__init__()
        self.wte = nn.Embedding(vocab, width)
        self.h = nn.ModuleList(ContestBlock(width, heads, context) for _ in range(depth))
        self.lm_head = nn.Linear(width, vocab, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = F.rms_norm(self.wte(ids), (self.wte.embedding_dim,))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(F.rms_norm(x, (x.shape[-1],))).float()
        return 15.0 * torch.tanh(logits / 15.0)


def make_contest_gpt(batch: int) -> TrainingExample:
    """Return a decoder of 12 layers, 896 wide with 7 heads, for 1,024 tokens."""
    net = ContestGpt(50304, width=896, depth=12, heads=7, context=1024)
    return TrainingExample(net, torch.randint(0, 50304, (batch, 1024)))


# ---------------------------------------------------------------------------------------------
# A mixture of experts whose weights are stacked


class StackedExperts(nn.Module):
    """A mixture of gated MLPs as two batched products; each expert has room for so many tokens.

    Tokens that find their expert full are dropped, as in GShard and Switch Transformers.
    """

    def __init__(self, width: int, hidden: int, experts: int, room: float = 1.25) -> None:
        super().__init__()
        self.experts, self.room = experts, room
        self.router = nn.Linear(width, experts, bias=False)
        self.w_in = nn.Parameter(0.02 * torch.randn(experts, width, 2 * hidden))
        self.w_out = nn.Parameter(0.02 * torch.randn(experts, hidden, width))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        weights, chosen = self.router(flat).float().softmax(dim=-1).topk(2, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        capacity = int(self.room * 2 * len(flat) / self.experts)
        expert = chosen.flatten()
        hot = F.one_hot(expert, self.experts)
        place = (hot.cumsum(dim=0) * hot).sum(dim=1) - 1
        dropped = self.experts * capacity
        slot = torch.where(place < capacity, expert * capacity + place, dropped)
        slots = flat.new_zeros(dropped + 1, flat.shape[1])
        slots = slots.index_add(0, slot, flat.repeat_interleave(2, dim=0))
        gate, value = torch.bmm(slots[:-1].view(self.experts, capacity, -1), self.w_in).chunk(2, -1)
        result = torch.bmm(F.silu(gate) * value, self.w_out).view(dropped, -1)
        result = F.pad(result, (0, 0, 0, 1))[slot] * weights.view(-1, 1)
        return result.view(len(flat), 2, -1).sum(dim=1).to(x.dtype).view_as(x)


class MixtureBlock(nn.Module):
    """Attention and stacked experts, each after an RMS norm."""

    def __init__(self, width: int, heads: int, context: int, hidden: int, experts: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention = NormedAttention(width, heads, context)
        self.experts = StackedExperts(width, hidden, experts)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.experts(self.norm2(x))
        return out


def make_stacked_mixture(batch: int) -> TrainingExample:
    """Return a decoder of 6 layers, 1,024 wide, each with 16 stacked experts."""
    width, tokens, vocab = 1024, 1024, 32768
    net = nn.Sequential(
        nn.Embedding(vocab, width),
        *(MixtureBlock(width, 8, tokens, hidden=1280, experts=16) for _ in range(6)),
        nn.RMSNorm(width),
        nn.Linear(width, vocab, bias=False),
    )
    return TrainingExample(net, torch.randint(0, vocab, (batch, tokens)))


# ---------------------------------------------------------------------------------------------
# Models of the transformers library


def make_gemma(batch: int) -> TrainingExample:
    """Return a Gemma of half a billion parameters: gated GELUs, one head of keys and values."""
    library: Any = import_module("transformers")

    config = library.GemmaConfig(
        vocab_size=64000,
        hidden_size=1536,
        intermediate_size=6144,
        num_hidden_layers=12,
        num_attention_heads=6,
        num_key_value_heads=1,
        head_dim=256,
        use_cache=False,
    )
    ids = torch.randint(0, config.vocab_size, (batch, 1024))
    inputs = {"input_ids": ids, "labels": ids.clone()}
    return TrainingExample(library.GemmaForCausalLM(config), inputs, take_loss)


def make_deberta(batch: int) -> TrainingExample:
    """Return a DeBERTa v3 base that labels 256 tokens with 15 classes."""
    library: Any = import_module("transformers")

    config = library.DebertaV2Config(
        vocab_size=128100,
        hidden_size=768,
        num_hidden_layers=12,
        num_attention_heads=12,
        intermediate_size=3072,
        type_vocab_size=0,
        relative_attention=True,
        position_buckets=256,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        pos_att_type=["p2c", "c2p"],
        position_biased_input=False,
        num_labels=15,
    )
    inputs = {
        "input_ids": torch.randint(3, config.vocab_size, (batch, 256)),
        "attention_mask": torch.ones(batch, 256, dtype=torch.long),
        "labels": torch.randint(0, 15, (batch, 256)),
    }
    return TrainingExample(library.DebertaV2ForTokenClassification(config), inputs, take_loss)


class SentencePairs(nn.Module):
    """Similarities of all questions and answers of a batch, by one encoder."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def embed(self, ids: Tensor) -> Tensor:
        """Return normalized means over tokens."""
        return F.normalize(self.encoder(input_ids=ids).last_hidden_state.mean(dim=1), dim=-1)

    def forward(self, questions: Tensor, answers: Tensor) -> Tensor:
        return 20.0 * self.embed(questions) @ self.embed(answers).t()


def make_mpnet_pairs(batch: int) -> TrainingExample:
    """Return an MPNet that learns sentence embeddings from pairs, 128 tokens each."""
    library: Any = import_module("transformers")

    config = library.MPNetConfig(vocab_size=30527)
    net = SentencePairs(library.MPNetModel(config, add_pooling_layer=False))
    inputs = tuple(torch.randint(4, config.vocab_size, (batch, 128)) for _ in range(2))
    pairs = torch.arange(batch)
    return TrainingExample(net, inputs, lambda scores: F.cross_entropy(scores, pairs))


class ScaledLinear(nn.Module):
    """A frozen linear layer whose inputs or outputs are scaled by trained vectors (IA3)."""

    def __init__(self, base: nn.Linear, scales_input: bool = False) -> None:
        super().__init__()
        self.base, self.scales_input = base, scales_input
        self.scale = nn.Parameter(
            torch.ones(base.in_features if scales_input else base.out_features)
        )

    def forward(self, x: Tensor) -> Tensor:
        if self.scales_input:
            out: Tensor = self.base(x * self.scale)
            return out
        return self.base(x) * self.scale


def make_phi_ia3(batch: int) -> TrainingExample:
    """Return a frozen Phi of 0.8 billion parameters with IA3 on keys, values and MLPs."""
    library: Any = import_module("transformers")

    config = library.PhiConfig(
        vocab_size=51200,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=12,
        num_attention_heads=32,
        use_cache=False,
    )
    net = library.PhiForCausalLM(config)
    net.requires_grad_(False)
    for layer in net.model.layers:
        layer.self_attn.k_proj = ScaledLinear(layer.self_attn.k_proj)
        layer.self_attn.v_proj = ScaledLinear(layer.self_attn.v_proj)
        layer.mlp.fc2 = ScaledLinear(layer.mlp.fc2, scales_input=True)
    ids = torch.randint(0, config.vocab_size, (batch, 768))
    return TrainingExample(net, {"input_ids": ids, "labels": ids.clone()}, take_loss)


# ---------------------------------------------------------------------------------------------
# A tagger


class CrfTagger(nn.Module):
    """A bidirectional LSTM with a conditional random field that returns its loss.

    The sum over all sequences of tags runs word by word, so the host has much to issue.
    """

    def __init__(self, vocab: int, embedding: int, hidden: int, tags: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocab, embedding)
        self.dropout = nn.Dropout(0.5)
        self.lstm = nn.LSTM(embedding, hidden, 2, batch_first=True, bidirectional=True)
        self.output = nn.Linear(2 * hidden, tags)
        self.moves = nn.Parameter(0.1 * torch.randn(tags, tags))

    def forward(self, ids: Tensor, tags: Tensor) -> Tensor:
        scores = self.output(self.dropout(self.lstm(self.dropout(self.words(ids)))[0]))
        total = scores[:, 0]
        for at in range(1, ids.shape[1]):
            paths = total.unsqueeze(2) + self.moves
            total = torch.logsumexp(paths, dim=1) + scores[:, at]
        own = scores.gather(2, tags.unsqueeze(2)).sum(dim=(1, 2))
        own = own + self.moves[tags[:, :-1], tags[:, 1:]].sum(dim=1)
        return (torch.logsumexp(total, dim=1) - own).mean()


def make_crf_tagger(batch: int) -> TrainingExample:
    """Return a tagger of names in sentences of 40 words, with 17 tags."""
    net = CrfTagger(23000, embedding=200, hidden=256, tags=17)
    inputs = (torch.randint(0, 23000, (batch, 40)), torch.randint(0, 17, (batch, 40)))
    return TrainingExample(net, inputs, lambda loss: loss)
