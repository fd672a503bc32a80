# ruff: noqa: E501
"""The list of networks of all tests that can be built again, in the order of measuring.

Each test's networks were fixed before any of them was measured; they are development networks now.
They alternate between domains, precisions and sizes, so that the first ones of a test are a fair
sample if device time runs out. Networks that no library has are in git (commit 497b476); what
Joulecast read of them, its probes and the truth are in ``results/``.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.anywhere.truth import BenchmarkNetwork as Network
from benchmarks.anywhere.truth import TrainingExample, take_loss

Make = Callable[[int], TrainingExample]
Inputs = Callable[[int], dict[str, Tensor]]


def vision(name: str, *shape: int, channels_last: bool = False) -> Make:
    """Return a function that builds a classifier of torchvision, for 224x224 by default."""
    shape = shape or (3, 224, 224)

    def make(batch: int) -> TrainingExample:
        package = "torchvision.models.video" if len(shape) > 3 else "torchvision.models"
        net = getattr(import_module(package), name)(weights=None)
        images = torch.randn(batch, *shape)
        if channels_last:
            net, images = (one.to(memory_format=torch.channels_last) for one in (net, images))
        return TrainingExample(net, images)

    return make


def make_inception(batch: int) -> TrainingExample:
    """Return an Inception v3 for 299x299 with its auxiliary classifier."""
    models: Any = import_module("torchvision.models")
    labels = torch.randint(0, 1000, (batch,))

    def loss(output: Any) -> Tensor:
        return F.cross_entropy(output[0], labels) + 0.4 * F.cross_entropy(output[1], labels)

    net = models.inception_v3(weights=None, init_weights=False)
    return TrainingExample(net, torch.randn(batch, 3, 299, 299), loss)


def make_deeplab(batch: int) -> TrainingExample:
    """Return DeepLabv3 with a ResNet-50 for 21 classes at 512x512."""
    models: Any = import_module("torchvision.models.segmentation")
    net = models.deeplabv3_resnet50(weights=None, weights_backbone=None, num_classes=21)
    masks = torch.randint(0, 21, (batch, 512, 512))
    images = torch.randn(batch, 3, 512, 512)
    return TrainingExample(net, images, lambda output: F.cross_entropy(output["out"], masks))


def hf(model: str, inputs: Inputs, config: str = "", **options: Any) -> Make:
    """Return a function that builds a model of transformers with its own loss.

    Args:
        model: Name of the model's class.
        inputs: Makes its inputs for a batch size.
        config: Name of its configuration; by default that of the model.
        options: Values of the configuration.
    """

    def make(batch: int) -> TrainingExample:
        library: Any = import_module("transformers")
        made = getattr(library, config or f"{model.partition('For')[0]}Config")(**options)
        net = getattr(library, model)(made)
        if hasattr(net, "freeze_feature_encoder"):
            net.freeze_feature_encoder()
        return TrainingExample(net, inputs(batch), take_loss)

    return make


def text(vocabulary: int, tokens: int) -> Inputs:
    """Return inputs of a language model, which are its labels too."""

    def make(batch: int) -> dict[str, Tensor]:
        ids = torch.randint(3, vocabulary, (batch, tokens))
        return {"input_ids": ids, "labels": ids.clone()}

    return make


def pair(vocabulary: int, read: int, written: int, classes: int = 0) -> Inputs:
    """Return tokens that are read with a mask, and labels: written tokens or classes."""

    def make(batch: int) -> dict[str, Tensor]:
        return {
            "input_ids": torch.randint(3, vocabulary, (batch, read)),
            "attention_mask": torch.ones(batch, read, dtype=torch.long),
            "labels": torch.randint(0, classes or vocabulary, (batch, written)),
        }

    return make


def signal(
    name: str, shape: tuple[int, ...], classes: int = 0, places: tuple[int, ...] = ()
) -> Inputs:
    """Return images, videos or sound, and labels of classes in so many places."""

    def make(batch: int) -> dict[str, Tensor]:
        inputs = {name: torch.randn(batch, *shape)}
        if classes:
            inputs["labels"] = torch.randint(0, classes, (batch, *places))
        return inputs

    return make


def answers(batch: int) -> dict[str, Tensor]:
    """Return questions and texts of 384 tokens, and where the answers are."""
    return {
        "input_ids": torch.randint(5, 30000, (batch, 384)),
        "attention_mask": torch.ones(batch, 384, dtype=torch.long),
        "token_type_ids": (torch.arange(384) >= 64).long().repeat(batch, 1),
        "start_positions": torch.randint(64, 384, (batch,)),
        "end_positions": torch.randint(64, 384, (batch,)),
    }


T5 = hf(
    "T5ForConditionalGeneration", pair(32128, 512, 128), vocab_size=32128, d_model=768, d_kv=64,
    d_ff=2048, num_layers=12, num_heads=12, feed_forward_proj="gated-gelu",
    tie_word_embeddings=False, decoder_start_token_id=0,
)  # fmt: skip
ELECTRA = hf(
    "ElectraForPreTraining", pair(30522, 256, 256, 2), embedding_size=1024, hidden_size=1024,
    num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096,
)  # fmt: skip
# No layer is left out at random: every step is the same work.
WAV2VEC2 = hf(
    "Wav2Vec2ForSequenceClassification", signal("input_values", (80000,), 8), num_labels=8,
    layerdrop=0.0,
)  # fmt: skip
GEMMA = hf(
    "GemmaForCausalLM", text(64000, 1024), vocab_size=64000, hidden_size=1536, head_dim=256,
    intermediate_size=6144, num_hidden_layers=12, num_attention_heads=6, num_key_value_heads=1,
    use_cache=False,
)  # fmt: skip
DEBERTA = hf(
    "DebertaV2ForTokenClassification", pair(128100, 256, 256, 15), vocab_size=128100,
    hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072,
    type_vocab_size=0, relative_attention=True, position_buckets=256, norm_rel_ebd="layer_norm",
    share_att_key=True, pos_att_type=["p2c", "c2p"], position_biased_input=False, num_labels=15,
)  # fmt: skip
POOLFORMER = hf(
    "PoolFormerForImageClassification", signal("pixel_values", (3, 224, 224), 1000), "PoolFormerConfig",
    depths=[4, 4, 12, 4], hidden_sizes=[64, 128, 320, 512], drop_path_rate=0.0, num_labels=1000,
)  # fmt: skip
SEGFORMER = hf(
    "SegformerForSemanticSegmentation", signal("pixel_values", (3, 512, 512), 150, (512, 512)),
    num_labels=150, depths=[2, 2, 2, 2], hidden_sizes=[64, 128, 320, 512],
    decoder_hidden_size=256, drop_path_rate=0.0,
)  # fmt: skip
MASKED = hf("ViTMAEForPreTraining", signal("pixel_values", (3, 224, 224)), norm_pix_loss=True)
TIMESFORMER = hf(
    "TimesformerForVideoClassification", signal("pixel_values", (8, 3, 224, 224), 400),
    num_labels=400,
)  # fmt: skip
WHISPER = hf(
    "WhisperForConditionalGeneration", signal("input_features", (80, 3000), 50000, (128,)),
    d_model=768, encoder_layers=12, decoder_layers=12, encoder_attention_heads=12,
    decoder_attention_heads=12, encoder_ffn_dim=3072, decoder_ffn_dim=3072, use_cache=False,
)  # fmt: skip
PEGASUS = hf(
    "PegasusForConditionalGeneration", pair(96103, 512, 128), vocab_size=96103, d_model=768,
    encoder_layers=12, decoder_layers=12, encoder_attention_heads=12, decoder_attention_heads=12,
    encoder_ffn_dim=3072, decoder_ffn_dim=3072, max_position_embeddings=512, scale_embedding=True,
    use_cache=False,
)  # fmt: skip
ALBERT = hf(
    "AlbertForQuestionAnswering", answers, vocab_size=30000, embedding_size=128, hidden_size=768,
    num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072,
)  # fmt: skip
PYTHIA = hf(
    "GPTNeoXForCausalLM", text(50432, 512), hidden_size=1024, num_hidden_layers=24,
    num_attention_heads=16, intermediate_size=4096,
)  # fmt: skip
ROBERTA = hf("RobertaForMaskedLM", text(50265, 128), vocab_size=50265, max_position_embeddings=514)
BART = hf(
    "BartForConditionalGeneration", pair(50265, 512, 64), encoder_layers=6, decoder_layers=6,
    d_model=768, encoder_ffn_dim=3072, decoder_ffn_dim=3072,
)  # fmt: skip
SEGFORMER_256 = hf(
    "SegformerForSemanticSegmentation", signal("pixel_values", (3, 256, 256), 19, (256, 256)),
    hidden_sizes=[64, 128, 320, 512], decoder_hidden_size=256, num_labels=19,
)  # fmt: skip

V, H = "torchvision", "transformers"
TESTS: dict[str, tuple[Network, ...]] = {
    "first": (
        Network("resnet101", "vision", vision("resnet101", channels_last=True), 256, "bf16", "sgd", V),
        Network("t5_base", "language", T5, 32, "tf32", "adamw", H),
        Network("efficientnet_b3", "vision", vision("efficientnet_b3", 3, 300, 300), 96, "tf32", "sgd", V),
        Network("r2plus1d_18", "video", vision("r2plus1d_18", 3, 16, 112, 112), 48, "bf16", "sgd", V),
        Network("densenet169", "vision", vision("densenet169"), 96, "tf32", "sgd", V),
        Network("vit_l_16", "vision", vision("vit_l_16"), 96, "bf16", "adamw", V),
        Network("deeplab", "vision", make_deeplab, 16, "bf16", "sgd", V),
        Network("electra_large", "language", ELECTRA, 48, "bf16", "adamw", H),
        Network("swin_v2_s", "vision", vision("swin_v2_s", 3, 256, 256), 64, "tf32", "adamw", V),
        Network("wav2vec2", "speech", WAV2VEC2, 32, "bf16", "adamw", H),
        Network("regnet_y_8gf", "vision", vision("regnet_y_8gf"), 128, "tf32", "sgd", V),
        Network("convnext_base", "vision", vision("convnext_base"), 128, "bf16", "adamw", V),
    ),
    "second": (
        Network("segformer", "vision", SEGFORMER, 16, "bf16", "adamw", H),
        Network("resnext101_32x8d", "vision", vision("resnext101_32x8d", channels_last=True), 96, "bf16", "sgd", V),
        Network("inception_v3", "vision", make_inception, 128, "tf32", "sgd", V),
        Network("gemma", "language", GEMMA, 8, "bf16", "adamw", H, tiny_batch=1),
        Network("mobilenet_v3_small", "vision", vision("mobilenet_v3_small"), 64, "tf32", "sgd", V),
        Network("timesformer", "video", TIMESFORMER, 12, "bf16", "adamw", H),
        Network("poolformer", "vision", POOLFORMER, 128, "tf32", "adamw", H),
        Network("deberta", "language", DEBERTA, 32, "bf16", "adamw", H),
        Network("masked_autoencoder", "vision", MASKED, 256, "bf16", "adamw", H),
    ),
    "third": (
        Network("whisper_small", "speech", WHISPER, 16, "bf16", "adamw", H),
        Network("pegasus", "language", PEGASUS, 48, "bf16", "adamw", H),
        Network("maxvit_t", "vision", vision("maxvit_t"), 64, "tf32", "adamw", V),
        Network("s3d", "video", vision("s3d", 3, 16, 224, 224), 32, "bf16", "sgd", V),
        Network("albert_qa", "language", ALBERT, 48, "tf32", "adamw", H),
        Network("efficientnet_v2_m", "vision", vision("efficientnet_v2_m", 3, 384, 384, channels_last=True), 64, "bf16", "sgd", V),
    ),
    "fourth": (
        Network("pythia_410m", "language", PYTHIA, 16, "bf16", "adamw", H, 1),
        Network("roberta_base", "language", ROBERTA, 32, "tf32", "adamw", H, 1),
        Network("efficientnet_b4", "vision", vision("efficientnet_b4"), 32, "bf16", "sgd", V),
        Network("opt_125m", "language", hf("OPTForCausalLM", text(50272, 256)), 4, "tf32", "adamw", H, 1),
        Network("vgg16_bn", "vision", vision("vgg16_bn"), 32, "fp32", "sgd", V),
        Network("swin_b", "vision", vision("swin_b"), 64, "bf16", "adamw", V),
        Network("bart_base", "language", BART, 32, "bf16", "adamw", H, 1),
        Network("regnet_x_3_2gf", "vision", vision("regnet_x_3_2gf"), 128, "tf32", "sgd", V),
        Network("segformer_b1", "vision", SEGFORMER_256, 32, "tf32", "adamw", H, 1),
        Network("shufflenet_v2_x2_0", "vision", vision("shufflenet_v2_x2_0"), 128, "bf16", "sgd", V),
        Network("densenet201", "vision", vision("densenet201"), 64, "tf32", "sgd", V),
        Network("convnext_large", "vision", vision("convnext_large"), 64, "bf16", "adamw", V),
        Network("r3d_18", "video", vision("r3d_18", 3, 16, 112, 112), 16, "tf32", "sgd", V),
        Network("mnasnet1_3", "vision", vision("mnasnet1_3"), 128, "fp32", "sgd", V),
    ),
}  # fmt: skip
"""Networks of each test by its name."""
