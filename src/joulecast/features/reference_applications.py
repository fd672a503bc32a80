"""Build the six reference applications that devices are scored on.

They are the applications of DeepEn2023. Its twelve nets are not public as such: these are small
real architectures of each application, chosen by us, of 0.2 to 0.9 GFLOP per inference.

    image_classification   MobileNetV2                 one image, 1,000 classes
    object_detection       SSD on MobileNetV1          classes and boxes of four feature maps
    super_resolution       ESPCN                       an image three times as large
    segmentation           U-Net                       a class for every pixel
    question_answering     BERT, "mini"                start and end of the answer
    speech                 convolutions and LSTM       a letter for every other frame

No framework is needed; every runtime builds the same networks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

from joulecast.families.draft import DATA, NetworkDraft, make_function, make_pool
from joulecast.operators import make_layer, make_op
from joulecast.records import Network

_NORM, _FLATTEN = make_op("batch_norm"), make_op("flatten")
_RELU, _RELU6, _TANH = make_function("relu"), make_function("relu6"), make_function("tanh")
_SOFTMAX = make_function("softmax")
# Of a bottleneck of MobileNetV2: expansion, channels, repetitions, first stride.
_MOBILE_STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
                  (6, 160, 3, 2), (6, 320, 1, 1))  # fmt: skip
# Of a separable convolution of the detector: channels and stride.
_DETECTOR_STAGES = ((32, 1), (64, 2), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (256, 1),
                    (512, 2), (512, 1))  # fmt: skip
_ANCHORS, _OBJECT_CLASSES, _PIXEL_CLASSES = 6, 21, 21
_SCALE = 3
_VOCABULARY, _QUESTION_TOKENS, _BERT_WIDTH, _BERT_DEPTH, _BERT_HEADS = 30_522, 128, 256, 4, 4
_LETTERS = 29


def list_reference_applications() -> tuple[str, ...]:
    """Return the names of the reference applications, in the order in which they are shown."""
    return tuple(_APPLICATIONS)


@cache
def build_reference_application(name: str) -> Network:
    """Return the network of a reference application."""
    shape, vocabulary, add_layers = _APPLICATIONS[name]
    draft = NetworkDraft(shape, vocabulary)
    add_layers(draft)
    network = draft.finish(name)
    counts: Counter[str] = Counter()
    layers = []
    for layer in network.layers:
        kind = layer.sizes.get("fn", layer.kind)
        counts[kind] += 1
        layers.append(replace(layer, name=f"{kind}{counts[kind]}"))
    return replace(network, layers=tuple(layers))


def _add_image_classification(draft: NetworkDraft) -> None:
    draft.conv(32, 3, DATA, (_NORM, _RELU6), stride=2, padding=1, bias=0)
    for expansion, channels, repetitions, first_stride in _MOBILE_STAGES:
        for number in range(repetitions):
            with draft.block():
                _add_inverted_residual(draft, expansion, channels, 1 if number else first_stride)
    draft.conv(1280, 1, None, (_NORM, _RELU6), bias=0)
    draft.pool(make_pool("adaptive_avg", 1), tail=(_FLATTEN,))
    draft.linear(1000)


def _add_inverted_residual(draft: NetworkDraft, expansion: int, channels: int, stride: int) -> None:
    start = draft.last
    width = draft.shape()[0] * expansion
    if expansion > 1:
        draft.conv(width, 1, None, (_NORM, _RELU6), bias=0)
    draft.conv(width, 3, None, (_NORM, _RELU6), stride=stride, padding=1, groups=width, bias=0)
    body = draft.conv(channels, 1, None, (_NORM,), bias=0)
    if draft.shape(start) == draft.shape(body):
        draft.function("add", (body, start))


def _add_object_detection(draft: NetworkDraft) -> None:
    draft.conv(16, 3, DATA, (_NORM, _RELU), stride=2, padding=1, bias=0)
    maps = []
    for stages in (_DETECTOR_STAGES[:-2], _DETECTOR_STAGES[-2:]):
        for channels, stride in stages:
            width = draft.shape()[0]
            sizes: dict[str, Any] = {"stride": stride, "padding": 1, "groups": width, "bias": 0}
            draft.conv(width, 3, None, (_NORM, _RELU), **sizes)
            draft.conv(channels, 1, None, (_NORM, _RELU), bias=0)
        maps.append(draft.last)
    for channels in (256, 128):
        draft.conv(channels // 2, 1, None, (_NORM, _RELU), bias=0)
        draft.conv(channels, 3, None, (_NORM, _RELU), stride=2, padding=1, bias=0)
        maps.append(draft.last)
    classes = [_add_head(draft, one, _OBJECT_CLASSES) for one in maps]
    boxes = [_add_head(draft, one, 4) for one in maps]
    scores = draft.concat(classes, (_SOFTMAX, _FLATTEN))
    corners = draft.concat(boxes, (_FLATTEN,))
    draft.concat((scores, corners))


def _add_head(draft: NetworkDraft, feature_map: int, outputs: int) -> int:
    """Add a head that predicts so many numbers for each anchor of a feature map."""
    _, height, width = draft.shape(feature_map)
    rows = (
        make_op("permute", order=(1, 2, 0)),
        make_op("view", out=(height * width * _ANCHORS, outputs)),
    )
    return draft.conv(_ANCHORS * outputs, 3, feature_map, rows, padding=1)


def _add_super_resolution(draft: NetworkDraft) -> None:
    side = draft.shape()[1]
    draft.conv(64, 5, DATA, (_TANH,), padding=2)
    draft.conv(32, 3, None, (_TANH,), padding=1)
    pixel_shuffle = (
        make_op("view", out=(1, _SCALE, _SCALE, side, side)),
        make_op("permute", order=(0, 3, 1, 4, 2)),
        make_op("view", out=(1, side * _SCALE, side * _SCALE)),
    )
    draft.conv(_SCALE**2, 3, None, pixel_shuffle, padding=1)


def _add_segmentation(draft: NetworkDraft) -> None:
    skipped = []
    for channels in (16, 32, 64):
        _add_two_convolutions(draft, channels)
        skipped.append(draft.last)
        draft.pool(make_pool("max", 2))
    _add_two_convolutions(draft, 128)
    for channels, skip in zip((64, 32, 16), reversed(skipped), strict=True):
        larger = draft.conv(channels, 2, None, kind="conv_transpose2d", stride=2)
        draft.concat((larger, skip))
        _add_two_convolutions(draft, channels)
    draft.conv(_PIXEL_CLASSES, 1)


def _add_two_convolutions(draft: NetworkDraft, channels: int) -> None:
    for _ in range(2):
        draft.conv(channels, 3, None, (_NORM, _RELU), padding=1, bias=0)


def _add_question_answering(draft: NetworkDraft) -> None:
    draft.embedding(_VOCABULARY, _BERT_WIDTH, DATA)
    # A learned position for each token.
    draft.function("add", None, (make_op("layer_norm"),), params=_QUESTION_TOKENS * _BERT_WIDTH)
    for _ in range(_BERT_DEPTH):
        with draft.block():
            _add_encoder(draft)
    draft.linear(2, None, (make_op("permute", order=(1, 0)), _SOFTMAX))


def _add_encoder(draft: NetworkDraft) -> None:
    """Add self-attention and a feed-forward layer, each with a residual sum and then a norm."""
    norm, start = (make_op("layer_norm"),), draft.last
    draft.linear(3 * _BERT_WIDTH)
    sizes: dict[str, Any] = dict.fromkeys(("tokens", "kv_tokens"), _QUESTION_TOKENS)
    sizes |= dict.fromkeys(("heads", "kv_heads"), _BERT_HEADS)
    draft.add(make_layer("sdpa", head_dim=_BERT_WIDTH // _BERT_HEADS, **sizes))
    body = draft.linear(_BERT_WIDTH)
    middle = draft.function("add", (body, start), norm)
    draft.linear(4 * _BERT_WIDTH, None, (make_function("gelu"),))
    body = draft.linear(_BERT_WIDTH)
    draft.function("add", (body, middle), norm)


def _add_speech(draft: NetworkDraft) -> None:
    width, hidden = 128, 256
    draft.conv(width, 5, DATA, (_NORM, _RELU), stride=2, padding=2, bias=0)
    to_tokens = (_NORM, _RELU, make_op("permute", order=(1, 0)))
    draft.conv(width, 5, None, to_tokens, padding=2, bias=0)
    tokens = draft.shape()[0]
    draft.add(make_layer("lstm", cin=width, hidden=hidden, tokens=tokens, depth=2))
    draft.linear(_LETTERS, None, (make_function("log_softmax"),))


# Shape of a sample, size of the vocabulary for tokens, and what adds the layers.
_APPLICATIONS: dict[str, tuple[tuple[int, ...], int, Callable[[NetworkDraft], None]]] = {
    "image_classification": ((3, 160, 160), 0, _add_image_classification),
    "object_detection": ((3, 192, 192), 0, _add_object_detection),
    "super_resolution": ((1, 96, 96), 0, _add_super_resolution),
    "segmentation": ((3, 112, 112), 0, _add_segmentation),
    "question_answering": ((_QUESTION_TOKENS,), _VOCABULARY, _add_question_answering),
    # Bands of a mel spectrogram, and frames.
    "speech": ((80, 200), 0, _add_speech),
}
