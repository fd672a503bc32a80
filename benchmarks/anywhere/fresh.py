"""The networks of the fifth test: fixed before any of them was estimated or measured."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.anywhere.truth import BenchmarkNetwork as Network
from benchmarks.anywhere.truth import TrainingExample

Json = dict[str, Any]


class MlpEnsemble(nn.Module):
    """An ensemble of networks for tables as batched products, as TabM with packed members."""

    def __init__(self, features: int, width: int, members: int, classes: int) -> None:
        super().__init__()
        sizes = [features, width, width, width]
        self.weights = nn.ParameterList(
            nn.Parameter(torch.randn(members, i, o) * i**-0.5) for i, o in pairwise(sizes)
        )
        self.biases = nn.ParameterList(
            nn.Parameter(torch.zeros(members, 1, width)) for _ in range(3)
        )
        self.head = nn.Parameter(torch.randn(members, width, classes) * width**-0.5)
        self.members = members

    def forward(self, x: Tensor) -> Tensor:
        x = x.expand(self.members, *x.shape)
        for weight, bias in zip(self.weights, self.biases, strict=True):
            x = F.dropout(F.relu(torch.baddbmm(bias, x, weight)), 0.1, self.training)
        return torch.bmm(x, self.head).transpose(0, 1)


class GraphAttention(nn.Module):
    """A graph attention network over edges: gather, softmax by target, scatter."""

    def __init__(self, features: int, width: int, heads: int, depth: int, classes: int) -> None:
        super().__init__()
        self.embed = nn.Linear(features, width)
        self.projections = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(depth))
        self.scores = nn.ParameterList(
            nn.Parameter(torch.randn(2, heads, width // heads) * 0.1) for _ in range(depth)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.head, self.heads = nn.Linear(width, classes), heads

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        x = self.embed(x)
        for project, score, norm in zip(self.projections, self.scores, self.norms, strict=True):
            h = project(x).view(len(x), self.heads, -1)
            logits = (h * score[0]).sum(-1)[source] + (h * score[1]).sum(-1)[target]
            weight = F.leaky_relu(logits, 0.2).exp()
            total = torch.zeros(len(x), self.heads, device=x.device, dtype=weight.dtype).index_add(
                0, target, weight
            )
            message = h[source] * (weight / (total[target] + 1e-6)).unsqueeze(-1)
            out = torch.zeros_like(h).index_add(0, target, message.to(h.dtype))
            x = norm(x + F.elu(out.flatten(1)))
        return self.head(x)


class EquivariantNet(nn.Module):
    """Messages from distances that move points and features (EGNN), on batches of point sets."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()

        def mlp(i: int, o: int) -> nn.Module:
            return nn.Sequential(nn.Linear(i, width), nn.SiLU(), nn.Linear(width, o), nn.SiLU())

        self.embed = nn.Linear(8, width)
        self.messages = nn.ModuleList(mlp(2 * width + 1, width) for _ in range(depth))
        self.moves = nn.ModuleList(nn.Linear(width, 1) for _ in range(depth))
        self.updates = nn.ModuleList(mlp(2 * width, width) for _ in range(depth))
        self.head = nn.Linear(width, 1)

    def forward(self, h: Tensor, x: Tensor) -> Tensor:
        h, n = self.embed(h), x.shape[1]
        for message, move, update in zip(self.messages, self.moves, self.updates, strict=True):
            offset = x.unsqueeze(2) - x.unsqueeze(1)
            square = offset.square().sum(-1, keepdim=True)
            pair = torch.cat(
                [
                    h.unsqueeze(2).expand(-1, -1, n, -1),
                    h.unsqueeze(1).expand(-1, n, -1, -1),
                    square,
                ],
                -1,
            )
            m = message(pair)
            x = x + (offset * move(m)).mean(2)
            h = h + update(torch.cat([h, m.sum(2)], -1))
        return self.head(h.mean(1))


class OdeClassifier(nn.Module):
    """A neural ODE: one convolutional field, integrated by Runge-Kutta steps."""

    def __init__(self, width: int, steps: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 2, 1), nn.GroupNorm(8, width), nn.ReLU())
        self.field = nn.Sequential(
            nn.Conv2d(width, width, 3, 1, 1),
            nn.GroupNorm(8, width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, 1, 1),
            nn.Tanh(),
        )
        self.head, self.steps = nn.Linear(width, 10), steps

    def forward(self, x: Tensor) -> Tensor:
        x, dt = self.stem(x), 1.0 / self.steps
        for _ in range(self.steps):
            a = self.field(x)
            b = self.field(x + 0.5 * dt * a)
            c = self.field(x + 0.5 * dt * b)
            d = self.field(x + dt * c)
            x = x + dt / 6 * (a + 2 * b + 2 * c + d)
        return self.head(x.mean((2, 3)))


class ClickModel(nn.Module):
    """A recommender in the manner of DLRM: embedding bags, products of pairs, two perceptrons."""

    def __init__(self, tables: int, rows: int, width: int) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.bottom = nn.Sequential(
            nn.Linear(13, 512),
            nn.ReLU(),
            nn.Linear(512, 256),
            nn.ReLU(),
            nn.Linear(256, width),
            nn.ReLU(),
        )
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(
            nn.Linear(pairs + width, 1024),
            nn.ReLU(),
            nn.Linear(1024, 512),
            nn.ReLU(),
            nn.Linear(512, 1),
        )

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        x = self.bottom(dense)
        vectors = torch.stack([x, *(bag(sparse[:, at]) for at, bag in enumerate(self.bags))], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        rows, columns = torch.tril_indices(vectors.shape[1], vectors.shape[1], -1, device=x.device)
        return self.top(torch.cat([x, products[:, rows, columns]], 1)).squeeze(1)


class StyleGenerator(nn.Module):
    """Modulated convolutions with weights for every sample (StyleGAN 2): grouped convolutions."""

    def __init__(self, width: int, levels: int) -> None:
        super().__init__()
        self.map = nn.Sequential(
            *(layer for _ in range(4) for layer in (nn.Linear(256, 256), nn.LeakyReLU(0.2)))
        )
        self.start = nn.Parameter(torch.randn(1, width, 8, 8))
        widths = [width // 2 ** (level // 2) for level in range(levels + 1)]
        self.kernels = nn.ParameterList(
            nn.Parameter(torch.randn(o, i, 3, 3) * (9 * i) ** -0.5) for i, o in pairwise(widths)
        )
        self.styles = nn.ModuleList(nn.Linear(256, i) for i in widths[:-1])
        self.to_rgb = nn.Conv2d(widths[-1], 3, 1)

    def forward(self, z: Tensor) -> Tensor:
        w = self.map(z)
        x = self.start.expand(len(z), -1, -1, -1)
        for kernel, style in zip(self.kernels, self.styles, strict=True):
            x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
            weight = kernel.unsqueeze(0) * (1 + style(w))[:, None, :, None, None]
            weight = weight * torch.rsqrt(weight.square().sum((2, 3, 4), keepdim=True) + 1e-8)
            b, c, h, s = x.shape
            out = weight.shape[1]
            x = F.conv2d(
                x.reshape(1, b * c, h, s), weight.reshape(b * out, c, 3, 3), padding=1, groups=b
            )
            x = F.leaky_relu(x.view(b, out, h, s), 0.2)
        return self.to_rgb(x)


class ConvLstm(nn.Module):
    """A convolutional LSTM that reads a video and predicts its next frame."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.cells = nn.ModuleList(
            nn.Conv2d((1 if at == 0 else width) + width, 4 * width, 5, padding=2)
            for at in range(depth)
        )
        self.head, self.width = nn.Conv2d(width, 1, 1), width

    def forward(self, video: Tensor) -> Tensor:
        b, frames, _, h, w = video.shape
        states = [
            (video.new_zeros(b, self.width, h, w), video.new_zeros(b, self.width, h, w))
            for _ in self.cells
        ]
        for frame in range(frames):
            x = video[:, frame]
            for at, cell in enumerate(self.cells):
                hidden, memory = states[at]
                i, f, o, g = cell(torch.cat([x, hidden], 1)).chunk(4, 1)
                memory = f.sigmoid() * memory + i.sigmoid() * g.tanh()
                x = o.sigmoid() * memory.tanh()
                states[at] = x, memory
        return self.head(x)


class LongConvolution(nn.Module):
    """A language model with long convolutions by FFT (Hyena) in place of attention."""

    def __init__(self, vocabulary: int, width: int, depth: int, tokens: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth))
        self.inputs = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(depth))
        self.filters = nn.ParameterList(
            nn.Parameter(torch.randn(width, tokens) * tokens**-0.5) for _ in range(depth)
        )
        self.outputs = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(depth)
        )
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x, n = self.embed(ids), ids.shape[1]
        for at, (mix, kernel, out, mlp) in enumerate(
            zip(self.inputs, self.filters, self.outputs, self.mlps, strict=True)
        ):
            q, k, v = mix(self.norms[2 * at](x)).chunk(3, -1)
            u = (k * v).transpose(1, 2).float()
            y = torch.fft.irfft(torch.fft.rfft(u, 2 * n) * torch.fft.rfft(kernel, 2 * n), 2 * n)[
                ..., :n
            ]
            x = x + out(q * y.transpose(1, 2).to(q.dtype))
            x = x + mlp(self.norms[2 * at + 1](x))
        return self.head(x)


class LowRank(nn.Module):
    """A frozen linear layer with a low-rank update (LoRA)."""

    def __init__(self, base: nn.Linear, rank: int = 16) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Linear(base.in_features, rank, bias=False)
        self.b = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 2.0 * self.b(self.a(x))


def square(output: Tensor) -> Tensor:
    """Return the mean square of an output."""
    return output.float().square().mean()


def take(output: Any) -> Tensor:
    """Return the loss in the output of a model of transformers."""
    loss: Tensor = output.loss
    return loss


def plain(
    cls: Callable[..., nn.Module],
    inputs: Callable[[int], Any],
    loss: Any = "cross_entropy",
    **options: Any,
) -> Callable[[int], TrainingExample]:
    """Return a function that builds one of the modules above."""
    return lambda batch: TrainingExample(cls(**options), inputs(batch), loss)


def hf(
    model: str, config: str, inputs: Callable[[int], Json], **options: Any
) -> Callable[[int], TrainingExample]:
    """Return a function that builds a model of transformers with its own loss."""

    def make(batch: int) -> TrainingExample:
        library: Any = import_module("transformers")
        net = getattr(library, model)(getattr(library, config)(**options))
        return TrainingExample(net, inputs(batch), take)

    return make


def vision(
    name: str,
    *shape: int,
    package: str = "torchvision.models",
    channels_last: bool = False,
    **options: Any,
) -> Callable[[int], TrainingExample]:
    """Return a function that builds a classifier of torchvision."""

    def make(batch: int) -> TrainingExample:
        net = getattr(import_module(package), name)(weights=None, **options)
        images = torch.randn(batch, *(shape or (3, 224, 224)))
        if channels_last:
            net, images = (one.to(memory_format=torch.channels_last) for one in (net, images))
        return TrainingExample(net, images)

    return make


def tokens(vocabulary: int, length: int) -> Callable[[int], Json]:
    """Return inputs of a language model, which are its labels too."""

    def make(batch: int) -> Json:
        ids = torch.randint(5, vocabulary, (batch, length))
        return {"input_ids": ids, "labels": ids.clone()}

    return make


def images(size: int, classes: int) -> Callable[[int], Json]:
    """Return images and their classes."""

    def make(batch: int) -> Json:
        return {
            "pixel_values": torch.randn(batch, 3, size, size),
            "labels": torch.randint(0, classes, (batch,)),
        }

    return make


def lora(batch: int) -> TrainingExample:
    """Return a decoder of 1.1 billion weights with low-rank updates of all its projections."""
    library: Any = import_module("transformers")
    config = library.LlamaConfig(
        vocab_size=32000,
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=22,
        num_attention_heads=32,
        num_key_value_heads=4,
        use_cache=False,
    )
    net = library.LlamaForCausalLM(config).requires_grad_(False)
    for module in list(net.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear) and name.endswith("_proj"):
                setattr(module, name, LowRank(child))
    return TrainingExample(net, tokens(32000, 512)(batch), take)


def graph(batch: int) -> tuple[Tensor, Tensor]:
    """Return features and edges of a graph with 2,000 nodes for each of ``batch``."""
    nodes = 2000 * batch
    return torch.randn(nodes, 256), torch.randint(0, nodes, (2, 12 * nodes))


def vlm(batch: int) -> TrainingExample:
    """Return a vision-language model (LLaVA) with a small tower and a small decoder."""
    library: Any = import_module("transformers")
    tower = library.CLIPVisionConfig(
        hidden_size=768,
        intermediate_size=3072,
        num_hidden_layers=12,
        num_attention_heads=12,
        image_size=224,
        patch_size=16,
    )
    text = library.LlamaConfig(
        vocab_size=32064,
        hidden_size=1536,
        intermediate_size=4096,
        num_hidden_layers=14,
        num_attention_heads=12,
        num_key_value_heads=4,
        use_cache=False,
    )
    config = library.LlavaConfig(
        vision_config=tower,
        text_config=text,
        image_token_id=32000,
        vision_feature_select_strategy="default",
        vision_feature_layer=-2,
    )
    net = library.LlavaForConditionalGeneration(config)
    ids = torch.randint(5, 31000, (batch, 196 + 188))
    ids[:, 4:200] = 32000
    labels = ids.clone()
    labels[:, :200] = -100
    return TrainingExample(
        net,
        {"input_ids": ids, "pixel_values": torch.randn(batch, 3, 224, 224), "labels": labels},
        take,
    )


V, H = "torchvision", "transformers"
FRESH: tuple[Network, ...] = (
    Network(
        "qwen3_0_6b",
        "language",
        hf(
            "Qwen3ForCausalLM",
            "Qwen3Config",
            tokens(151936, 512),
            vocab_size=151936,
            hidden_size=1024,
            intermediate_size=3072,
            num_hidden_layers=28,
            num_attention_heads=16,
            num_key_value_heads=8,
            head_dim=128,
            tie_word_embeddings=True,
            use_cache=False,
        ),
        8,
        "bf16",
        "adamw",
        H,
        1,
    ),
    Network("mobilenet_v3_large", "vision", vision("mobilenet_v3_large"), 256, "tf32", "sgd", V),
    Network(
        "tab_ensemble",
        "tables",
        plain(
            MlpEnsemble,
            lambda b: torch.randn(b, 128),
            lambda out: F.cross_entropy(
                out.flatten(0, 1),
                torch.zeros(out.shape[0] * out.shape[1], dtype=torch.long, device=out.device),
            ),
            features=128,
            width=512,
            members=32,
            classes=10,
        ),
        1024,
        "tf32",
        "adamw",
    ),
    Network(
        "olmoe_small",
        "language",
        hf(
            "OlmoeForCausalLM",
            "OlmoeConfig",
            tokens(50304, 512),
            vocab_size=50304,
            hidden_size=1024,
            intermediate_size=512,
            num_hidden_layers=8,
            num_attention_heads=16,
            num_key_value_heads=16,
            num_experts=64,
            num_experts_per_tok=8,
            pad_token_id=1,
            bos_token_id=None,
            eos_token_id=2,
            use_cache=False,
        ),
        8,
        "bf16",
        "adamw",
        H,
        1,
    ),
    Network(
        "graph_attention",
        "graphs",
        plain(GraphAttention, graph, features=256, width=256, heads=8, depth=4, classes=40),
        40,
        "tf32",
        "adam",
        "",
        1,
    ),
    Network("resnet152", "vision", vision("resnet152", channels_last=True), 128, "bf16", "sgd", V),
    Network(
        "ast",
        "speech",
        hf(
            "ASTForAudioClassification",
            "ASTConfig",
            lambda b: {
                "input_values": torch.randn(b, 1024, 128),
                "labels": torch.randint(0, 527, (b,)),
            },
            num_labels=527,
        ),
        16,
        "bf16",
        "adamw",
        H,
        1,
    ),
    Network(
        "egnn",
        "graphs",
        plain(
            EquivariantNet,
            lambda b: (torch.randn(b, 24, 8), torch.randn(b, 24, 3)),
            square,
            width=128,
            depth=5,
        ),
        256,
        "fp32",
        "adam",
    ),
    Network("lora_1b", "language", lora, 8, "bf16", "adamw", H, 1),
    Network(
        "mvit_v2_s",
        "video",
        vision("mvit_v2_s", 3, 16, 224, 224, package="torchvision.models.video"),
        16,
        "bf16",
        "adamw",
        V,
        1,
    ),
    Network(
        "click_model",
        "recommendation",
        plain(
            ClickModel,
            lambda b: (torch.randn(b, 13), torch.randint(0, 200000, (b, 26, 4))),
            lambda out: F.binary_cross_entropy_with_logits(out, torch.zeros_like(out)),
            tables=26,
            rows=200000,
            width=64,
        ),
        4096,
        "tf32",
        "sgd",
    ),
    Network(
        "neural_ode",
        "vision",
        plain(OdeClassifier, lambda b: torch.randn(b, 3, 32, 32), width=64, steps=10),
        128,
        "tf32",
        "sgd",
    ),
    Network(
        "videomae",
        "video",
        hf(
            "VideoMAEForVideoClassification",
            "VideoMAEConfig",
            lambda b: {
                "pixel_values": torch.randn(b, 16, 3, 224, 224),
                "labels": torch.randint(0, 400, (b,)),
            },
            num_labels=400,
        ),
        8,
        "bf16",
        "adamw",
        H,
        1,
    ),
    Network(
        "style_generator",
        "generation",
        plain(StyleGenerator, lambda b: torch.randn(b, 256), square, width=512, levels=5),
        16,
        "tf32",
        "adam",
    ),
    Network(
        "modernbert",
        "language",
        hf(
            "ModernBertForMaskedLM",
            "ModernBertConfig",
            tokens(50368, 256),
            reference_compile=False,
            attn_implementation="sdpa",
            num_hidden_layers=12,
        ),
        64,
        "bf16",
        "adamw",
        H,
        1,
    ),
    Network("llava_small", "multimodal", vlm, 8, "bf16", "adamw", H, 1),
    Network(
        "conv_lstm",
        "video",
        plain(ConvLstm, lambda b: torch.randn(b, 10, 1, 64, 64), square, width=64, depth=2),
        32,
        "tf32",
        "adam",
    ),
    Network(
        "dinov2_s",
        "vision",
        hf(
            "Dinov2ForImageClassification",
            "Dinov2Config",
            images(224, 1000),
            hidden_size=384,
            num_hidden_layers=12,
            num_attention_heads=6,
            image_size=224,
            patch_size=14,
            num_labels=1000,
        ),
        128,
        "bf16",
        "adamw",
        H,
    ),
    Network(
        "bloom_560m",
        "language",
        hf(
            "BloomForCausalLM",
            "BloomConfig",
            tokens(250880, 256),
            vocab_size=250880,
            hidden_size=1024,
            n_layer=24,
            n_head=16,
            use_cache=False,
        ),
        8,
        "bf16",
        "adamw",
        H,
        1,
    ),
    Network(
        "swin2sr",
        "generation",
        lambda b: TrainingExample(
            import_module("transformers").Swin2SRForImageSuperResolution(
                import_module("transformers").Swin2SRConfig(
                    embed_dim=60,
                    depths=[6, 6, 6, 6],
                    num_heads=[6, 6, 6, 6],
                    window_size=8,
                    image_size=64,
                    upscale=2,
                    upsampler="pixelshuffledirect",
                )
            ),
            torch.rand(b, 3, 64, 64),
            lambda out: out.reconstruction.float().square().mean(),
        ),
        16,
        "fp32",
        "adam",
        H,
        1,
    ),
    Network(
        "hyena",
        "language",
        plain(
            LongConvolution,
            lambda b: torch.randint(0, 8192, (b, 1024)),
            vocabulary=8192,
            width=512,
            depth=8,
            tokens=1024,
        ),
        16,
        "bf16",
        "adamw",
        "",
        1,
    ),
    Network(
        "fcn_resnet50",
        "vision",
        lambda b: TrainingExample(
            import_module("torchvision.models.segmentation").fcn_resnet50(
                weights=None, weights_backbone=None, num_classes=21
            ),
            torch.randn(b, 3, 256, 256),
            lambda out: F.cross_entropy(
                out["out"],
                torch.zeros(
                    out["out"].shape[0], 256, 256, dtype=torch.long, device=out["out"].device
                ),
            ),
        ),
        32,
        "tf32",
        "sgd",
        V,
    ),
    Network(
        "patch_mixer",
        "series",
        lambda b: TrainingExample(
            import_module("transformers").PatchTSMixerForPrediction(
                import_module("transformers").PatchTSMixerConfig(
                    context_length=512,
                    patch_length=16,
                    patch_stride=16,
                    num_input_channels=32,
                    d_model=128,
                    num_layers=8,
                    prediction_length=96,
                    loss="mse",
                )
            ),
            {"past_values": torch.randn(b, 512, 32), "future_values": torch.randn(b, 96, 32)},
            take,
        ),
        64,
        "tf32",
        "adam",
        H,
    ),
    Network("squeezenet1_1", "vision", vision("squeezenet1_1"), 64, "fp32", "sgd", V),
    Network(
        "marian",
        "language",
        hf(
            "MarianMTModel",
            "MarianConfig",
            lambda b: {
                "input_ids": torch.randint(5, 58100, (b, 64)),
                "attention_mask": torch.ones(b, 64, dtype=torch.long),
                "labels": torch.randint(5, 58100, (b, 64)),
            },
            vocab_size=58101,
            d_model=512,
            encoder_layers=6,
            decoder_layers=6,
            encoder_attention_heads=8,
            decoder_attention_heads=8,
            encoder_ffn_dim=2048,
            decoder_ffn_dim=2048,
            pad_token_id=58100,
            decoder_start_token_id=58100,
            eos_token_id=0,
            forced_eos_token_id=0,
            use_cache=False,
        ),
        64,
        "tf32",
        "adamw",
        H,
        1,
    ),
)
"""Networks in the order of measuring, so that the first ones are a fair sample."""
