"""The networks of the third test, fixed before any of them was measured or estimated.

None is in an earlier table. They alternate between domains, precisions and sizes, so that the first
ones of the table are a fair sample if device time runs out.
"""

from __future__ import annotations

from third_generative import make_audio_codec, make_style_gan, make_text_diffusion
from third_language import (
    make_albert_qa,
    make_latent_attention,
    make_pegasus,
    make_qwen_lora,
    make_state_space,
)
from third_neighbourhoods import make_point_transformer, make_swin_restorer
from third_signals import (
    make_citation_graph,
    make_deepfm,
    make_double_q,
    make_fourier_operator,
    make_fusion_forecaster,
    make_speaker_encoder,
    make_whisper_small,
)
from third_vision import (
    make_detr,
    make_dino,
    make_face_recognizer,
    make_nested_unet,
    make_soft_mixture,
    make_text_recognizer,
)
from vision_networks import make_torchvision

from training_examples import BenchmarkNetwork

VISION, HF = "torchvision", "transformers"

THIRD_NETWORKS = (
    BenchmarkNetwork(
        "latent_attention", "language", make_latent_attention, 16, "bf16", "adamw", tiny_batch=1
    ),
    BenchmarkNetwork("nested_unet", "vision", make_nested_unet, 32, "tf32", "sgd"),
    BenchmarkNetwork("whisper_small", "speech", make_whisper_small, 16, "bf16", "adamw", HF),
    BenchmarkNetwork("deepfm", "tables", make_deepfm, 16384, "tf32", "adamw"),
    BenchmarkNetwork("face_recognizer", "vision", make_face_recognizer, 384, "bf16", "sgd"),
    BenchmarkNetwork(
        "citation_graph", "graphs", make_citation_graph, 169343, "fp32", "adam", tiny_batch=200
    ),
    BenchmarkNetwork("style_gan", "generative", make_style_gan, 48, "tf32", "adam"),
    BenchmarkNetwork("pegasus", "language", make_pegasus, 48, "bf16", "adamw", HF),
    BenchmarkNetwork(
        "maxvit_t", "vision", make_torchvision("maxvit_t"), 64, "tf32", "adamw", VISION
    ),
    BenchmarkNetwork("text_diffusion", "generative", make_text_diffusion, 64, "bf16", "adamw"),
    BenchmarkNetwork("fusion_forecaster", "series", make_fusion_forecaster, 256, "tf32", "adamw"),
    BenchmarkNetwork(
        "s3d", "video", make_torchvision("s3d", (3, 16, 224, 224)), 32, "bf16", "sgd", VISION
    ),
    BenchmarkNetwork("albert_qa", "language", make_albert_qa, 48, "tf32", "adamw", HF),
    BenchmarkNetwork("dino", "vision", make_dino, 128, "bf16", "adamw"),
    BenchmarkNetwork("point_transformer", "points", make_point_transformer, 32, "tf32", "sgd"),
    BenchmarkNetwork(
        "state_space", "language", make_state_space, 16, "bf16", "adamw", tiny_batch=1
    ),
    BenchmarkNetwork("audio_codec", "generative", make_audio_codec, 64, "tf32", "adam"),
    BenchmarkNetwork(
        "efficientnet_v2_m", "vision",
        make_torchvision("efficientnet_v2_m", (3, 384, 384), channels_last=True), 64,
        "bf16", "sgd", VISION,
    ),
    BenchmarkNetwork("double_q", "control", make_double_q, 256, "tf32", "adam"),
    BenchmarkNetwork("soft_mixture", "vision", make_soft_mixture, 256, "bf16", "adamw"),
    BenchmarkNetwork("detr", "vision", make_detr, 16, "tf32", "adamw", VISION),
    BenchmarkNetwork("swin_restorer", "vision", make_swin_restorer, 24, "bf16", "adam"),
    BenchmarkNetwork("fourier_operator", "fields", make_fourier_operator, 32, "fp32", "adamw"),
    BenchmarkNetwork("speaker_encoder", "speech", make_speaker_encoder, 192, "bf16", "sgd"),
    BenchmarkNetwork("text_recognizer", "vision", make_text_recognizer, 256, "tf32", "sgd"),
    BenchmarkNetwork("qwen_lora", "language", make_qwen_lora, 8, "bf16", "adamw", HF, tiny_batch=1),
)  # fmt: skip
