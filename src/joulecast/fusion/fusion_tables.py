"""Hold the fusion table of each runtime: which operators run as one kernel.

PyTorch has two: one for eager steps, which it fuses nothing in, and one for compiled modules.

A rule is a pattern of operator names, one word for each operator in a chain: ``conv|dwconv bn?
relu?``. A word may be optional (``?``), or match any number (``*``) or at least one (``+``) of
operators; ``@pointwise`` stands for all pointwise operators. A chain ends where a result has a
second reader, except at its end. ``se = ...`` names the kernel; without a name it is called after
its operators. Where several patterns match, the longest chain is taken, then the first pattern.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from joulecast.errors import InputError
from joulecast.records import Setup

_CONVOLUTION = "|".join(
    f"{prefix}conv{dims}" for dims in ("", "1d", "3d") for prefix in ("", "dw", "grouped-")
)
_TRANSPOSED = "conv-transpose|conv1d-transpose|conv3d-transpose"
_SQUEEZE_EXCITE = "se = global-avgpool conv|fc relu|silu|hswish conv|fc sigmoid|hsigmoid mul"
_SHUFFLES = ("shuffle = view transpose copy? view", "shuffle = view transpose reshape")
_SPELLED_ATTENTION = "attention = matmul mul|div|add* softmax matmul"


@dataclass(frozen=True)
class PatternWord:
    """The operators that may stand at one position of a pattern, and how many of them."""

    names: frozenset[str]
    least: int = 1
    most: int = 1

    @property
    def any_pointwise(self) -> bool:
        """Whether it stands for all pointwise operators."""
        return "@pointwise" in self.names


@dataclass(frozen=True)
class FusionRule:
    """A pattern; ``kind`` is the name of its kernels, or empty where operators name them."""

    kind: str
    words: tuple[PatternWord, ...]


@dataclass(frozen=True)
class FusionTable:
    """The rules of a runtime.

    Attributes:
        name: Names the table in a fit.
        runtimes: Names of the runtimes that it is for, without their versions.
        patterns: Chains that run as one kernel, as the module's docstring says.
        free: Names of operators that run no kernel in inference.
        note: Where the rules come from.
    """

    name: str
    runtimes: tuple[str, ...]
    patterns: tuple[str, ...]
    free: frozenset[str]
    note: str = field(default="", compare=False)

    @cached_property
    def rules(self) -> tuple[FusionRule, ...]:
        """The patterns, parsed."""
        return tuple(map(_parse_rule, self.patterns))


FUSION_TABLES: dict[str, FusionTable] = {
    table.name: table
    for table in (
        FusionTable(
            "torch",
            ("torch", "simulated"),
            _SHUFFLES,
            frozenset({"view", "transpose", "split", "dropout"}),
            "PyTorch in eager mode fuses nothing; a shuffle is one copy of a transposed view.",
        ),
        FusionTable(
            "torch_compile",
            # Profiles of earlier versions name torch.compile as a runtime.
            ("torch_compile",),
            (
                *_SHUFFLES,
                _SPELLED_ATTENTION,
                "bn relu",
                "add relu",
                "ln = @pointwise* ln @pointwise*",
                "rms-norm = @pointwise* rms-norm @pointwise*",
                "gn = @pointwise* gn @pointwise*",
                "softmax = @pointwise* softmax @pointwise*",
                "embedding = embedding @pointwise*",
                "pointwise = @pointwise @pointwise+",
            ),
            frozenset({"view", "transpose", "split", "dropout"}),
            "TorchInductor calls libraries for convolutions and matrix products; a chain of "
            "pointwise operators is one kernel, together with a reduction inside it.",
        ),
        FusionTable(
            "onnxruntime",
            ("onnxruntime",),
            (
                *_SHUFFLES,
                _SPELLED_ATTENTION,
                f"{_CONVOLUTION} bn? add? relu|sigmoid|tanh|leaky-relu|hsigmoid?",
                f"{_TRANSPOSED} bn?",
                "fc relu|sigmoid|tanh|leaky-relu?",
                "add ln",
            ),
            frozenset({"view", "copy", "reshape", "dropout", "pad"}),
            "ONNX Runtime 1.31, CPU execution provider, all optimisations: batch norms and padding "
            "folded, FusedConv with sum and activation, FusedGemm, SkipLayerNormalization.",
        ),
        FusionTable(
            "tflite",
            ("tflite", "mnn"),
            (
                *_SHUFFLES,
                _SQUEEZE_EXCITE,
                f"{_CONVOLUTION} bn? relu?",
                f"{_TRANSPOSED} bn? relu?",
                "fc relu?",
                "bn relu?",
                "add relu?",
            ),
            frozenset({"view", "copy", "reshape", "dropout"}),
            "nn-Meter's rules of TensorFlow Lite on phones (Zhang et al., MobiSys 2021).",
        ),
    )
}
"""Fusion tables by name."""


def find_fusion_table(runtime: str, setup: Setup) -> FusionTable:
    """Return the table of a runtime, such as ``onnxruntime-1.31.1``; PyTorch's if it has none.

    What PyTorch compiles, as the setup says, has a table of its own.
    """
    if setup.compiled:
        return FUSION_TABLES["torch_compile"]
    bare = runtime.split("-", 1)[0]
    for table in FUSION_TABLES.values():
        if bare in table.runtimes:
            return table
    return FUSION_TABLES["torch"]


def _parse_rule(pattern: str) -> FusionRule:
    kind, equals, words = pattern.rpartition("=")
    return FusionRule(kind.strip() if equals else "", tuple(map(_parse_word, words.split())))


def _parse_word(word: str) -> PatternWord:
    least, most = {"?": (0, 1), "*": (0, _MANY), "+": (1, _MANY)}.get(word[-1], (1, 1))
    names = frozenset(word.rstrip("?*+").split("|"))
    if "" in names:
        raise InputError(f"{word!r} in a fusion pattern has an empty name: remove the extra |")
    return PatternWord(names, least, most)


# More would exceed the depth to which Python nests calls.
_MANY = 200
