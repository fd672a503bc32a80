"""The Gaussian process of a curve: what numpy predicts is what scikit-learn would."""

import json
import subprocess
import sys

import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel

from joulecast.errors import InputError
from joulecast.gp.regression import KERNELS, GaussianProcess, fit_gaussian_process

WIDTHS = [(1, 1), (64, 1), (1, 128), (64, 128), (20, 60), (40, 100), (10, 30), (50, 20)]
ASKED = np.array([[3.0, 7.0], [30.0, 64.0], [64.0, 128.0]])


def cost(widths):
    a, b = np.array(widths, dtype=float).T
    return 0.05 + 1e-3 * a + 2e-3 * b + 1e-4 * a * b


@pytest.fixture(scope="module")
def gp():
    values = cost(WIDTHS)
    return fit_gaussian_process(WIDTHS, values, (0.01 * values) ** 2)


@pytest.mark.parametrize("name", KERNELS)
def test_numpy_predicts_what_scikit_learn_does(name):
    values = cost(WIDTHS)
    gp = fit_gaussian_process(WIDTHS, values, (0.01 * values) ** 2, name)
    shape = RBF(gp.lengths) if name == "rbf" else Matern(gp.lengths, nu=2.5)
    kernel = ConstantKernel(gp.signal) * shape + WhiteKernel(gp.white)
    alpha = gp.variances / gp.scale**2
    theirs = GaussianProcessRegressor(kernel, alpha=alpha, optimizer=None)
    place = lambda w: (np.sqrt(w) - gp.offset) / gp.span  # noqa: E731
    theirs.fit(place(gp.widths), (gp.values - gp.mean) / gp.scale)
    mean, cov = theirs.predict(place(ASKED), return_cov=True)
    ours, our_cov = gp.predict(ASKED)
    assert ours == pytest.approx(gp.mean + gp.scale * mean, rel=1e-7)
    # scikit-learn counts the noise of new points in; ours is apart.
    noisy = our_cov + gp.nugget_variance * np.eye(3)
    assert noisy == pytest.approx(gp.scale**2 * cov, rel=1e-5, abs=1e-12)


def test_deviations_are_the_diagonal(gp):
    _, cov = gp.predict(ASKED)
    assert gp.standard_deviations(ASKED) == pytest.approx(np.sqrt(np.diag(cov)), rel=1e-6)


def test_the_kernel_is_kept_and_is_matern_where_nothing_says_otherwise(gp):
    old = {name: value for name, value in gp.to_dict().items() if name != "kernel"}
    assert GaussianProcess.from_dict(old).kernel == gp.kernel == "matern"
    smooth = fit_gaussian_process(WIDTHS, cost(WIDTHS), [1e-6] * len(WIDTHS), "rbf")
    assert GaussianProcess.from_dict(smooth.to_dict()).predict(ASKED)[0] == pytest.approx(
        smooth.predict(ASKED)[0]
    )
    with pytest.raises(InputError, match="'linear'; known are matern, rbf"):
        fit_gaussian_process(WIDTHS, cost(WIDTHS), [1e-6] * len(WIDTHS), "linear")


def test_it_survives_json_exactly(gp):
    again = GaussianProcess.from_dict(json.loads(json.dumps(gp.to_dict())))
    assert again.to_dict() == gp.to_dict()
    assert (again.predict(ASKED)[0] == gp.predict(ASKED)[0]).all()


def test_it_recovers_a_smooth_cost_between_its_points(gp):
    inside = [(16, 40), (30, 80), (45, 60)]
    means, _ = gp.predict(np.array(inside, dtype=float))
    assert means == pytest.approx(cost(inside), rel=0.1)


def test_it_is_surest_where_it_was_measured(gp):
    known = gp.standard_deviations(gp.widths)
    assert known.max() < gp.standard_deviations(np.array([[64.0, 60.0]]))[0]


@pytest.mark.parametrize("factor", [1e-6, 1e6])
def test_no_unit_is_special(gp, factor):
    values = factor * cost(WIDTHS)
    scaled = fit_gaussian_process(WIDTHS, values, (0.01 * values) ** 2)
    assert scaled.predict(ASKED)[0] == pytest.approx(factor * gp.predict(ASKED)[0], rel=1e-3)


@pytest.mark.parametrize(
    ("widths", "values"),
    [
        ([(5,)], [2.0]),
        ([()], [2.0]),
        ([(), ()], [2.0, 2.1]),
        ([(5,), (5,), (5,)], [2.0, 2.1, 1.9]),
        ([(1,), (9,)], [0.0, 0.0]),
        ([(1,), (9,)], [-0.1, 3.0]),
    ],
)
def test_few_or_odd_points_give_finite_answers(widths, values):
    gp = fit_gaussian_process(widths, values, [1e-4] * len(values))
    means, cov = gp.predict(np.array([list(widths[0]) or [1.0], [7.0]]))
    assert np.isfinite(means).all()
    assert np.isfinite(cov).all()
    assert (np.diag(cov) >= 0).all()


def test_two_points_leave_doubt_between_them():
    gp = fit_gaussian_process([(1,), (100,)], [1.0, 2.0], [1e-6, 1e-6])
    between = gp.standard_deviations(np.array([[30.0]]))[0]
    assert between > 0.1
    assert between > 5 * gp.standard_deviations(np.array([[1.0]]))[0]


def test_predicting_loads_neither_scikit_learn_nor_scipy(gp):
    code = (
        "import sys, json, numpy as np\n"
        "import joulecast.estimators as e\n"
        "from joulecast.gp.regression import Gp\n"
        "gp = Gp.from_dict(json.loads(sys.argv[1]))\n"
        "gp.predict(np.array([[3.0, 7.0]]))\n"
        "assert not {'sklearn', 'scipy', 'torch'} & set(sys.modules), sorted(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code, json.dumps(gp.to_dict())], check=True)
