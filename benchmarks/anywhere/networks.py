"""The test networks, fixed before any of them was measured. Nothing is ever chosen on them.

They alternate between domains, precisions and sizes, so that the first ones of the table are a fair
sample if device time runs out. Networks for trying things out are in ``development.py``.
"""

from __future__ import annotations

from generative_networks import make_conv_vae, make_diffusion_unet, make_gan, make_vocoder
from language_networks import (
    make_electra_large,
    make_gpt2_medium,
    make_llama_gqa,
    make_moe_decoder,
    make_olmo_lora,
    make_t5_base,
)
from recurrent_networks import make_awd_lstm, make_char_cnn, make_gru_translator
from speech_and_tables import make_conformer, make_dcn_v2, make_tabular_resnet, make_wav2vec2
from vision_networks import (
    make_deeplab,
    make_fpn_detector,
    make_medical_unet,
    make_pointnet,
    make_resmlp,
    make_torchvision,
)

from training_examples import BenchmarkNetwork

VISION, HF = "torchvision", "transformers"

NETWORKS = (
    BenchmarkNetwork("gpt2_medium", "language", make_gpt2_medium, 16, "bf16", "adamw"),
    BenchmarkNetwork("medical_unet", "vision", make_medical_unet, 16, "tf32", "adamw"),
    BenchmarkNetwork("awd_lstm", "language", make_awd_lstm, 80, "tf32", "sgd"),
    BenchmarkNetwork(
        "resnet101", "vision", make_torchvision("resnet101", channels_last=True), 256,
        "bf16", "sgd", VISION,
    ),
    BenchmarkNetwork("dcn_v2", "tables", make_dcn_v2, 16384, "tf32", "adamw"),
    BenchmarkNetwork("diffusion_unet", "generative", make_diffusion_unet, 96, "bf16", "adamw"),
    BenchmarkNetwork("t5_base", "language", make_t5_base, 32, "tf32", "adamw", HF),
    BenchmarkNetwork("conformer", "speech", make_conformer, 32, "bf16", "adamw"),
    BenchmarkNetwork(
        "efficientnet_b3", "vision", make_torchvision("efficientnet_b3", (3, 300, 300)), 96,
        "tf32", "sgd", VISION,
    ),
    BenchmarkNetwork("moe_decoder", "language", make_moe_decoder, 16, "bf16", "adamw"),
    BenchmarkNetwork("gan", "generative", make_gan, 192, "tf32", "adamw"),
    BenchmarkNetwork(
        "r2plus1d_18", "video", make_torchvision("r2plus1d_18", (3, 16, 112, 112)), 48,
        "bf16", "sgd", VISION,
    ),
    BenchmarkNetwork("tabular_resnet", "tables", make_tabular_resnet, 2048, "fp32", "adamw"),
    BenchmarkNetwork("olmo_lora", "language", make_olmo_lora, 8, "bf16", "adamw", HF),
    BenchmarkNetwork(
        "densenet169", "vision", make_torchvision("densenet169"), 96, "tf32", "sgd", VISION,
    ),
    BenchmarkNetwork("vocoder", "speech", make_vocoder, 32, "tf32", "adamw"),
    BenchmarkNetwork(
        "vit_l_16", "vision", make_torchvision("vit_l_16"), 96, "bf16", "adamw", VISION,
    ),
    BenchmarkNetwork("gru_translator", "language", make_gru_translator, 96, "fp32", "adam"),
    BenchmarkNetwork("deeplab", "vision", make_deeplab, 16, "bf16", "sgd", VISION),
    BenchmarkNetwork("pointnet", "points", make_pointnet, 48, "tf32", "adamw"),
    BenchmarkNetwork("electra_large", "language", make_electra_large, 48, "bf16", "adamw", HF),
    BenchmarkNetwork(
        "swin_v2_s", "vision", make_torchvision("swin_v2_s", (3, 256, 256)), 64,
        "tf32", "adamw", VISION,
    ),
    BenchmarkNetwork("wav2vec2", "speech", make_wav2vec2, 32, "bf16", "adamw", HF),
    BenchmarkNetwork(
        "regnet_y_8gf", "vision", make_torchvision("regnet_y_8gf"), 128, "tf32", "sgd", VISION,
    ),
    BenchmarkNetwork("resmlp", "vision", make_resmlp, 256, "bf16", "adamw"),
    BenchmarkNetwork("char_cnn", "language", make_char_cnn, 128, "fp32", "sgd"),
    BenchmarkNetwork(
        "convnext_base", "vision", make_torchvision("convnext_base"), 128,
        "bf16", "adamw", VISION,
    ),
    BenchmarkNetwork("conv_vae", "generative", make_conv_vae, 144, "tf32", "adamw"),
    BenchmarkNetwork("llama_gqa", "language", make_llama_gqa, 4, "bf16", "adamw", tiny_batch=1),
    BenchmarkNetwork("fpn_detector", "vision", make_fpn_detector, 16, "tf32", "sgd", VISION),
)  # fmt: skip
