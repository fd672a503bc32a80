"""Every prefix of a design is spread over labels and sizes."""

import numpy as np
import pytest

from joulecast.atlas.design import order_points


def make_points(count: int) -> list[tuple[float, ...]]:
    values = np.random.default_rng(0).uniform(0.0, 10.0, (count, 2))
    return [tuple(map(float, value)) for value in values]


def test_all_points_appear_once_and_ranks_count_within_labels() -> None:
    labels = ["a", "b", "b", "c"] * 10
    design = order_points(labels, make_points(40), [1.0] * 40)
    assert sorted(point.index for point in design) == list(range(40))
    for label in "abc":
        ranks = [point.rank for point in design if labels[point.index] == label]
        assert ranks == list(range(len(ranks)))


def test_first_points_fill_space() -> None:
    """Twenty of 500 points leave no other far away; the first twenty drawn do."""
    points = make_points(500)
    design = order_points(["a"] * 500, points, [1.0] * 500)

    def find_radius(taken: list[int]) -> float:
        x = np.array(points)
        distances = np.linalg.norm(x[:, None] - x[None, taken], axis=2)
        return float(distances.min(axis=1).max())

    chosen = [point.index for point in design[:20]]
    assert find_radius(chosen) < 0.75 * find_radius(list(range(20)))


def test_labels_with_more_work_get_more_points_but_all_come_early() -> None:
    labels = ["heavy"] * 300 + ["light"] * 300 + ["rare"] * 3
    shares = [0.9 / 300] * 300 + [0.1 / 300] * 300 + [1e-9] * 3
    design = order_points(labels, make_points(603), shares)
    prefix = [labels[point.index] for point in design[:100]]
    assert prefix.count("heavy") > prefix.count("light") > 0
    assert "rare" in prefix


def test_equal_points_and_no_points_are_ordered() -> None:
    assert order_points([], [], []) == ()
    design = order_points(["a"] * 3, [(1.0, 2.0)] * 3, [0.0] * 3)
    assert sorted(point.index for point in design) == [0, 1, 2]


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_order_does_not_depend_on_the_unit_of_shares(scale: float) -> None:
    labels, points = ["a", "b"] * 20, make_points(40)
    shares = [1.0 + index % 7 for index in range(40)]
    scaled = [scale * share for share in shares]
    assert order_points(labels, points, shares) == order_points(labels, points, scaled)
