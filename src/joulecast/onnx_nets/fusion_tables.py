"""Group the operators of a network into kernels by the fusion table of a runtime.

PyTorch has two: one for eager steps, which it fuses nothing in, and one for compiled modules.

A rule is a pattern of operator names, one word for each operator in a chain: ``conv|dwconv bn?
relu?``. A word may be optional (``?``), or match any number (``*``) or at least one (``+``) of
operators; ``@pointwise`` stands for all pointwise operators. A chain ends where a result has a
second reader, except at its end. ``se = ...`` names the kernel; without a name it is called after
its operators. Where several patterns match, the longest chain is taken, then the first pattern.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from joulecast.onnx_nets.op_graph import OpNode, is_pointwise, list_readers
from joulecast.operators import find_kind
from joulecast.records import Setup
from joulecast.system.errors import InputError

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


@dataclass(frozen=True)
class OpGroup:
    """The operators of one kernel: their numbers in call order, views between them included."""

    kind: str
    members: tuple[int, ...]


def group_ops(nodes: Sequence[OpNode], table: FusionTable, is_training: bool) -> list[OpGroup]:
    """Return the kernels of a network in the order in which they finish.

    In training, dropout runs, and gradients of slices move elements: only views are free.
    """
    matcher = _ChainMatcher(nodes, table, is_training)
    taken: set[int] = set()
    groups = []
    for number in range(len(nodes)):
        if number in taken:
            continue
        group = matcher.find_group(number, taken)
        if group is not None:
            taken.update(group.members)
            groups.append(group)
    return sorted(groups, key=lambda group: group.members[-1])


class _ChainMatcher:
    """Matches chains of operators, each the only reader of the one before."""

    def __init__(self, nodes: Sequence[OpNode], table: FusionTable, is_training: bool) -> None:
        self._nodes, self._table, self._is_training = nodes, table, is_training
        self._readers = list_readers(nodes)

    def find_group(self, start: int, taken: set[int]) -> OpGroup | None:
        """Return the longest chain that a pattern matches; the operator alone if none does."""
        best: OpGroup | None = None
        for rule in self._table.rules:
            chain = self._match(rule, start, taken)
            if chain and (best is None or self._count(chain) > self._count(best.members)):
                best = OpGroup(rule.kind or self._join_names(chain), chain)
        if best is not None:
            return best
        name = self._nodes[start].name
        return None if self._is_free(start) else OpGroup(name, (start,))

    def _match(self, rule: FusionRule, start: int, taken: set[int]) -> tuple[int, ...]:
        """Return the operators of a chain that matches a whole pattern; empty if none does."""
        best: tuple[int, ...] = ()
        for chain in self._extend(rule.words, (), start, taken):
            if self._count(chain) > self._count(best):
                best = chain
        return best

    def _extend(
        self, words: tuple[PatternWord, ...], chain: tuple[int, ...], at: int, taken: set[int]
    ) -> Iterator[tuple[int, ...]]:
        """Yield all chains that continue ``chain`` with the operator ``at`` and match the words."""
        if not words:
            yield chain
            return
        word, rest = words[0], words[1:]
        if word.least == 0:
            yield from self._extend(rest, chain, at, taken)
        if at < 0 or at in taken or not self._fits(chain, at):
            return
        grown = (*chain, at)
        after = self._find_next(at)
        if self._matches(word, at):
            left = PatternWord(word.names, max(0, word.least - 1), word.most - 1)
            yield from self._extend((left, *rest) if left.most else rest, grown, after, taken)
        elif chain and self._is_free(at):
            yield from self._extend(words, grown, after, taken)

    def _matches(self, word: PatternWord, at: int) -> bool:
        node = self._nodes[at]
        return node.name in word.names or (word.any_pointwise and is_pointwise(node.op))

    def _fits(self, chain: tuple[int, ...], at: int) -> bool:
        """Return whether an operator is called as often as the chain, with weights of its own."""
        first, layer = self._nodes[chain[0] if chain else at].layer, self._nodes[at].layer
        return (first.calls, first.tied) == (layer.calls, layer.tied)

    def _find_next(self, at: int) -> int:
        """Return the only reader of a result; -1 if there are several or none."""
        readers = self._readers[at]
        return readers[0] if len(readers) == 1 else -1

    def _is_free(self, at: int) -> bool:
        node = self._nodes[at]
        if self._is_training:
            return find_kind(node.op.kind).is_view
        return node.name in self._table.free

    def _count(self, chain: tuple[int, ...]) -> int:
        return sum(not self._is_free(at) for at in chain)

    def _join_names(self, chain: tuple[int, ...]) -> str:
        return "+".join(self._nodes[at].name for at in chain if not self._is_free(at))
