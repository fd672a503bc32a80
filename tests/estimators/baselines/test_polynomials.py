"""Test sparse polynomial regression: it finds the few terms that generated the data."""

import json

import numpy as np
import pytest

from joulecast.estimators.baselines.polynomials import MIN_POINTS, Polynomial, fit_polynomial


def draw_columns(count, seed=0):
    """Draw two ordinary columns and a special one that is no polynomial of them."""
    x = np.random.default_rng(seed).uniform(0.05, 1.0, (count, 2))
    return np.column_stack([x, np.sqrt(x[:, 0]) * x[:, 1]])


FUNCTIONS = {
    "line": lambda c: 1.0 + 2.0 * c[:, 0],
    "product": lambda c: 0.5 + 3.0 * c[:, 0] * c[:, 1],
    "cube": lambda c: 1.0 + 2.0 * c[:, 1] ** 3 + c[:, 0],
    "special": lambda c: 2.0 + 5.0 * c[:, 2],
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS.keys())
def test_polynomial_is_recovered(function):
    seen, unseen = draw_columns(30), draw_columns(50, seed=1)
    fitted, left_out = fit_polynomial(seen, function(seen), special=1, degree=3)
    assert fitted.predict(unseen) == pytest.approx(function(unseen), rel=1e-3)
    assert left_out == pytest.approx(function(seen), rel=1e-2)


def test_few_of_many_terms_are_kept():
    seen = draw_columns(30)
    noise = np.random.default_rng(2).normal(1.0, 0.01, len(seen))
    fitted, _ = fit_polynomial(seen, FUNCTIONS["product"](seen) * noise, special=1, degree=3)
    assert 1 <= len(fitted.weights) <= 5


def test_cross_validation_error_is_at_least_that_of_the_fit():
    seen = draw_columns(20)
    values = np.random.default_rng(3).uniform(1.0, 2.0, len(seen))
    fitted, left_out = fit_polynomial(seen, values, special=1, degree=3)
    assert np.std(left_out - values) >= np.std(fitted.predict(seen) - values)


def test_highest_degree_is_respected():
    seen = draw_columns(30)
    fitted, _ = fit_polynomial(seen, FUNCTIONS["cube"](seen), special=1, degree=2)
    assert np.array(fitted.powers).sum(axis=1).max() <= 2


def test_special_columns_are_in_no_product():
    seen = draw_columns(30)
    fitted, _ = fit_polynomial(seen, FUNCTIONS["special"](seen) ** 2, special=1, degree=3)
    powers = np.array(fitted.powers)
    assert (powers[powers[:, -1] > 0] == [0, 0, 1]).all()


@pytest.mark.parametrize("count", [1, 2, 5, MIN_POINTS - 1])
def test_fit_to_few_points_never_decreases_with_work(count):
    seen = draw_columns(count)
    fitted, _ = fit_polynomial(seen, FUNCTIONS["special"](seen), special=1, degree=3)
    grown = fitted.predict(np.linspace(0.1, 9.0, 20)[:, None] * seen[:1])
    assert (np.diff(grown) >= 0).all() and (grown > 0).all()


@pytest.mark.parametrize("count", [3, 15])
def test_points_of_one_size_give_their_mean(count):
    seen = np.ones((count, 3))
    fitted, _ = fit_polynomial(seen, np.linspace(0.99, 1.01, count), special=1, degree=3)
    assert fitted.predict(seen) == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize("count", [4, 30])
def test_units_do_not_matter(count):
    seen, unseen = draw_columns(count), draw_columns(9, seed=1)
    values = FUNCTIONS["cube"](seen)
    one, _ = fit_polynomial(seen, values, special=1, degree=3)
    kilo, _ = fit_polynomial(seen, 1000.0 * values, special=1, degree=3)
    assert kilo.predict(unseen) == pytest.approx(1000.0 * one.predict(unseen), rel=1e-6)


def test_polynomial_is_restored_exactly_from_json():
    seen = draw_columns(30)
    for values in (FUNCTIONS["cube"](seen), np.ones(30)):
        fitted, _ = fit_polynomial(seen, values, special=1, degree=3)
        again = Polynomial.from_dict(json.loads(json.dumps(fitted.to_dict())))
        assert (again.predict(seen) == fitted.predict(seen)).all()
