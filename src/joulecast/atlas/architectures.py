"""List the architectures that people train, and draw networks of them at random.

Each is scaled widely, log-uniformly: width, resolution, sequence, heads, groups, vocabulary and
depth, from toys to large language models. Layers are those that reading finds in real modules, so
that what is learnt from one holds for the other.
"""

from __future__ import annotations

from collections.abc import Callable

from joulecast.atlas.convolutional import (
    draw_convnext,
    draw_densenet,
    draw_grouped_resnet,
    draw_mobilenet,
    draw_resnet,
    draw_small_image_resnet,
    draw_vgg,
)
from joulecast.atlas.draw import SizeDraw
from joulecast.atlas.image_generators import (
    draw_diffusion_unet,
    draw_gan_discriminator,
    draw_gan_generator,
    draw_segmentation_unet,
    draw_video,
    draw_volume_unet,
)
from joulecast.atlas.language_models import (
    draw_bert,
    draw_gpt,
    draw_llama,
    draw_lora,
    draw_mixture,
    draw_neox,
    draw_state_space,
    draw_t5,
    draw_torch_encoder,
)
from joulecast.atlas.sequence_models import (
    draw_conv1d,
    draw_dlrm,
    draw_mlp,
    draw_recurrent,
    draw_speech_transformer,
    draw_waveform_encoder,
)
from joulecast.atlas.vision_transformers import draw_mixer, draw_segformer, draw_swin, draw_vit
from joulecast.records import Network

DrawNetwork = Callable[[SizeDraw], Network]

ARCHITECTURES: dict[str, DrawNetwork] = {
    "gpt": draw_gpt,
    "resnet": draw_resnet,
    "llama": draw_llama,
    "vit": draw_vit,
    "mobilenet": draw_mobilenet,
    "bert": draw_bert,
    "recurrent": draw_recurrent,
    "diffusion unet": draw_diffusion_unet,
    "mlp": draw_mlp,
    "convnext": draw_convnext,
    "speech transformer": draw_speech_transformer,
    "mixture": draw_mixture,
    "video": draw_video,
    "segmentation unet": draw_segmentation_unet,
    "dlrm": draw_dlrm,
    "gan generator": draw_gan_generator,
    "swin": draw_swin,
    "segformer": draw_segformer,
    "lora": draw_lora,
    "conv1d": draw_conv1d,
    "torch encoder": draw_torch_encoder,
    "densenet": draw_densenet,
    "mixer": draw_mixer,
    "t5": draw_t5,
    "gan discriminator": draw_gan_discriminator,
    "waveform encoder": draw_waveform_encoder,
    "vgg": draw_vgg,
    "neox": draw_neox,
    "state space": draw_state_space,
    "grouped resnet": draw_grouped_resnet,
    "volume unet": draw_volume_unet,
    "small image resnet": draw_small_image_resnet,
}
"""Functions that draw a network, by name; those of one task are spread over the table."""


def draw_network(architecture: str, seed: str) -> Network:
    """Return a random network of an architecture; equal seeds give equal networks."""
    return ARCHITECTURES[architecture](SizeDraw(f"{architecture} {seed}"))
