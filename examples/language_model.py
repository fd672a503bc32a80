"""A small language model in plain PyTorch, to be asked what generating text with it costs.

joulecast generate examples/language_model.py:make_net --device nvidia-h200 --cuda-graphs
"""

import torch
from torch import nn

import joulecast

VOCABULARY, WIDTH, HEADS, DEPTH = 32_000, 768, 12, 12


class Block(nn.Module):
    """Causal attention and a feed-forward layer, each with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed_forward = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, _ = x.shape
        packed = self.qkv(self.norm1(x)).view(batch, tokens, 3, HEADS, WIDTH // HEADS)
        query, key, value = packed.permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, tokens, WIDTH))
        return x + self.feed_forward(self.norm2(x))


class LanguageModel(nn.Module):
    """Embedding, blocks and logits."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(DEPTH)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(self.embedding(tokens))))


def make_net():
    """Return the model and example inputs; their length does not matter."""
    return LanguageModel(), torch.zeros(1, 128, dtype=torch.long)


def main() -> None:
    """Estimate a request on an H200."""
    model, inputs = make_net()
    found = joulecast.generate(model, inputs, device="nvidia-h200", cuda_graphs=True)
    low_j, high_j = found.request_interval_j
    print(f"{1000 * found.prompt_token_j:.2f} mJ per token of the prompt")
    print(f"{1000 * found.decode[-1].token_j:.0f} mJ per generated token")
    print(
        f"{found.request_j:.1f} J per request "
        f"({found.provenance}, 95 % interval {low_j:.1f}–{high_j:.1f} J)"
    )


if __name__ == "__main__":
    main()
