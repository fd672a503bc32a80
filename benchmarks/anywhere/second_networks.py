"""The networks of the second test, fixed before any of them was measured or estimated.

None is in ``networks.py``, in ``development.py`` or in an earlier table. They alternate between
domains, precisions and sizes, so that the first ones of the table are a fair sample if device time
runs out.
"""

from __future__ import annotations

from second_generative import (
    make_image_translator,
    make_joint_diffusion,
    make_quantized_autoencoder,
    make_scene_renderer,
)
from second_language import (
    make_contest_gpt,
    make_crf_tagger,
    make_deberta,
    make_gemma,
    make_mpnet_pairs,
    make_phi_ia3,
    make_stacked_mixture,
)
from second_signals import (
    make_actor_critic,
    make_feature_transformer,
    make_forecast_stack,
    make_patch_forecaster,
    make_recurrent_speech,
    make_two_towers,
    make_voice_separator,
)
from second_vision import (
    make_clip,
    make_edge_pointnet,
    make_inception,
    make_masked_autoencoder,
    make_one_stage_detector,
    make_poolformer,
    make_segformer,
    make_simclr,
    make_timesformer,
    make_volume_unet,
)
from vision_networks import make_torchvision

from training_examples import BenchmarkNetwork

VISION, HF = "torchvision", "transformers"

SECOND_NETWORKS = (
    BenchmarkNetwork(
        "contest_gpt", "language", make_contest_gpt, 24, "bf16", "adamw", tiny_batch=1
    ),
    BenchmarkNetwork("voice_separator", "speech", make_voice_separator, 16, "tf32", "adam"),
    BenchmarkNetwork("segformer", "vision", make_segformer, 16, "bf16", "adamw", HF),
    BenchmarkNetwork("forecast_stack", "series", make_forecast_stack, 1024, "tf32", "adam"),
    BenchmarkNetwork(
        "resnext101_32x8d", "vision", make_torchvision("resnext101_32x8d", channels_last=True), 96,
        "bf16", "sgd", VISION,
    ),
    BenchmarkNetwork("scene_renderer", "points", make_scene_renderer, 4096, "fp32", "adam"),
    BenchmarkNetwork("mpnet_pairs", "language", make_mpnet_pairs, 160, "bf16", "adamw", HF),
    BenchmarkNetwork("inception_v3", "vision", make_inception, 128, "tf32", "sgd", VISION),
    BenchmarkNetwork("two_towers", "tables", make_two_towers, 8192, "tf32", "adamw"),
    BenchmarkNetwork("joint_diffusion", "generative", make_joint_diffusion, 96, "bf16", "adamw"),
    BenchmarkNetwork("crf_tagger", "language", make_crf_tagger, 32, "fp32", "sgd"),
    BenchmarkNetwork("clip", "vision", make_clip, 256, "bf16", "adamw", HF),
    BenchmarkNetwork("edge_pointnet", "points", make_edge_pointnet, 32, "tf32", "sgd"),
    BenchmarkNetwork("gemma", "language", make_gemma, 8, "bf16", "adamw", HF, tiny_batch=1),
    BenchmarkNetwork("image_translator", "generative", make_image_translator, 32, "tf32", "adam"),
    BenchmarkNetwork("volume_unet", "vision", make_volume_unet, 4, "bf16", "sgd", tiny_batch=1),
    BenchmarkNetwork(
        "mobilenet_v3_small", "vision", make_torchvision("mobilenet_v3_small"), 64,
        "tf32", "sgd", VISION,
    ),
    BenchmarkNetwork("timesformer", "video", make_timesformer, 12, "bf16", "adamw", HF),
    BenchmarkNetwork("recurrent_speech", "speech", make_recurrent_speech, 32, "tf32", "sgd"),
    BenchmarkNetwork(
        "stacked_mixture", "language", make_stacked_mixture, 8, "bf16", "adamw", tiny_batch=1
    ),
    BenchmarkNetwork("poolformer", "vision", make_poolformer, 128, "tf32", "adamw", HF),
    BenchmarkNetwork("actor_critic", "control", make_actor_critic, 256, "fp32", "adam"),
    BenchmarkNetwork("one_stage_detector", "vision", make_one_stage_detector, 32, "bf16", "sgd"),
    BenchmarkNetwork(
        "feature_transformer", "tables", make_feature_transformer, 1024, "tf32", "adamw"
    ),
    BenchmarkNetwork("deberta", "language", make_deberta, 32, "bf16", "adamw", HF),
    BenchmarkNetwork("simclr", "vision", make_simclr, 512, "tf32", "sgd", VISION),
    BenchmarkNetwork(
        "masked_autoencoder", "vision", make_masked_autoencoder, 256, "bf16", "adamw", HF
    ),
    BenchmarkNetwork("patch_forecaster", "series", make_patch_forecaster, 128, "tf32", "adamw"),
    BenchmarkNetwork("phi_ia3", "language", make_phi_ia3, 8, "bf16", "adamw", HF, tiny_batch=1),
    BenchmarkNetwork(
        "quantized_autoencoder", "generative", make_quantized_autoencoder, 96, "tf32", "adamw"
    ),
)  # fmt: skip
