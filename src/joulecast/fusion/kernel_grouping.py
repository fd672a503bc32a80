"""Group the operators of a network into kernels by the patterns of a fusion table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from joulecast.fusion.fusion_tables import FusionRule, FusionTable, PatternWord
from joulecast.fusion.op_graph import OpNode, list_readers
from joulecast.fusion.op_names import is_pointwise
from joulecast.kinds import find_kind


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
