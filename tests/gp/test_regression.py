"""Gaussian process regression of one curve: numpy predicts what scikit-learn would."""

import json
import subprocess
import sys

import numpy as np
import pytest
from scipy.optimize import check_grad
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel

from joulecast.gp.regression import (
    BIAS_VARIANCE,
    KERNELS,
    GaussianProcess,
    ProcessOptions,
    ResidualProcess,
    _NegativeLogLikelihood,
    fit_gaussian_process,
    fit_residual_process,
)
from joulecast.system.errors import InputError

WIDTHS = [(1, 1), (64, 1), (1, 128), (64, 128), (20, 60), (40, 100), (10, 30), (50, 20)]
NEW_WIDTHS = np.array([[3.0, 7.0], [30.0, 64.0], [64.0, 128.0]])


def cost(widths):
    a, b = np.array(widths, dtype=float).T
    return 0.05 + 1e-3 * a + 2e-3 * b + 1e-4 * a * b


def fit(name="matern", factor=1.0):
    values = factor * cost(WIDTHS)
    return fit_gaussian_process(WIDTHS, values, (0.01 * values) ** 2, ProcessOptions(name))


@pytest.fixture(scope="module")
def process():
    return fit()


@pytest.mark.parametrize("name", KERNELS)
def test_prediction_equals_that_of_scikit_learn(name):
    process = fit(name)
    scales = process.length_scales
    shape = RBF(scales) if name == "rbf" else Matern(scales, nu=2.5)
    kernel = ConstantKernel(process.signal_variance) * shape + WhiteKernel(process.nugget)
    noise = process.variances / process.scale**2
    reference = GaussianProcessRegressor(kernel, alpha=noise, optimizer=None)

    def scale_points(widths):
        return (np.sqrt(widths) - process.offset) / process.span

    reference.fit(scale_points(process.inputs), (process.values - process.mean) / process.scale)
    expected_mean, expected_cov = reference.predict(scale_points(NEW_WIDTHS), return_cov=True)
    mean, cov = process.predict(NEW_WIDTHS)
    assert mean == pytest.approx(process.mean + process.scale * expected_mean, rel=1e-7)
    # scikit-learn includes the nugget of new points; ours is separate.
    with_nugget = cov + process.nugget_variance * np.eye(3)
    assert with_nugget == pytest.approx(process.scale**2 * expected_cov, rel=1e-5, abs=1e-12)
    assert process.standard_deviations(NEW_WIDTHS) == pytest.approx(np.sqrt(np.diag(cov)), rel=1e-6)


@pytest.mark.parametrize("options", [ProcessOptions("rbf"), ProcessOptions(roots=False)], ids=str)
def test_json_says_what_differs_from_the_defaults(process, options):
    own = fit_gaussian_process(WIDTHS, cost(WIDTHS), [1e-6] * len(WIDTHS), options)
    data = own.to_dict()
    assert (data["kernel"], data.get("warped", True)) == (options.kernel, options.roots)
    restored = GaussianProcess.from_dict(json.loads(json.dumps(data)))
    assert (restored.predict(NEW_WIDTHS)[0] == own.predict(NEW_WIDTHS)[0]).all()
    old = {name: value for name, value in process.to_dict().items() if name != "kernel"}
    assert GaussianProcess.from_dict(old).kernel == process.kernel == "matern"
    assert "warped" not in old
    with pytest.raises(InputError, match="'linear'; choose one of matern, rbf"):
        ProcessOptions("linear")


@pytest.mark.parametrize("factor", [1e-6, 1e6])
def test_prediction_scales_with_the_unit(process, factor):
    expected = factor * process.predict(NEW_WIDTHS)[0]
    assert fit(factor=factor).predict(NEW_WIDTHS)[0] == pytest.approx(expected, rel=1e-3)


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
def test_few_or_coinciding_points_give_finite_predictions(widths, values):
    process = fit_gaussian_process(widths, values, [1e-4] * len(values))
    means, cov = process.predict(np.array([list(widths[0]) or [1.0], [7.0]]))
    assert np.isfinite(means).all()
    assert np.isfinite(cov).all()
    assert (np.diag(cov) >= 0).all()


def test_prediction_loads_neither_scikit_learn_nor_scipy(process):
    code = (
        "import sys, json, numpy as np\n"
        "import joulecast.estimators as e\n"
        "from joulecast.gp.regression import GaussianProcess\n"
        "process = GaussianProcess.from_dict(json.loads(sys.argv[1]))\n"
        "process.predict(np.array([[3.0, 7.0]]))\n"
        "assert not {'sklearn', 'scipy', 'torch'} & set(sys.modules), sorted(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code, json.dumps(process.to_dict())], check=True)


def test_one_length_scale_over_channels_is_the_distance_of_equation_3():
    """Two axes of different range keep one unit: distances are Euclidean."""
    points = [(1, 1), (64, 4), (1, 4), (64, 1), (30, 2), (15, 3)]
    values = [1.0 + 0.1 * a + 0.01 * b for a, b in points]
    options = ProcessOptions(roots=False, lengths=False)
    process = fit_gaussian_process(points, values, [1e-6] * 6, options)
    assert process.length_scales[0] == process.length_scales[1]
    assert (process.span == 63.0).all() and not process.is_warped
    ours = fit_gaussian_process(points, values, [1e-6] * 6)
    assert ours.is_warped and ours.span[0] != ours.span[1]


def test_without_priors_the_likelihood_is_larger():
    """Signal variance 1 and known noise 0 are the kernel of the paper, on standardised values."""
    values = np.array([1.0, 1.4, 2.0, 2.9, 5.0, 9.0])
    points = [(1,), (8,), (16,), (24,), (48,), (64,)]
    options = ProcessOptions(priors=False, signal=False, noise=False)
    process = fit_gaussian_process(points, values, [0.5] * 6, options)
    assert process.signal_variance == 1.0 and (process.variances == 0.0).all()
    assert process.scale == pytest.approx(values.std())
    assert 0.1 <= process.length_scales[0] <= 10.0 and 1e-6 <= process.nugget <= 1.0
    fixed = ProcessOptions(signal=False, noise=False)
    with_priors = fit_gaussian_process(points, values, [0.5] * 6, fixed)
    assert compute_log_likelihood(process) >= compute_log_likelihood(with_priors) - 1e-6


def compute_log_likelihood(process):
    """Return the log marginal likelihood of the standardised values."""
    points = (np.sqrt(process.inputs) - process.offset) / process.span
    cov = process._covary(points, points) + (process.nugget + 1e-10) * np.eye(len(points))
    z = (process.values - process.mean) / process.scale
    _, log_det = np.linalg.slogdet(cov)
    return -0.5 * (z @ np.linalg.solve(cov, z) + log_det)


def draw_data(count=60, seed=0):
    """Return points, a smooth function of the first of two features, and its noise variances."""
    draw = np.random.default_rng(seed)
    points = draw.uniform(-2.0, 2.0, (count, 2))
    noise = np.full(count, 0.01**2)
    values = 0.5 * np.sin(2.0 * points[:, 0]) + draw.normal(0.0, 0.01, count)
    return points, values, noise


def test_smooth_function_is_learnt_and_the_other_feature_ignored():
    points, values, noise = draw_data()
    process = fit_residual_process(points, values, noise)
    others, truth, _ = draw_data(seed=1)
    mean, cov = process.predict(others)
    assert np.abs(mean - truth).mean() < 0.03
    assert process.length_scales[1] > 3.0 * process.length_scales[0]
    sds = np.sqrt(np.diag(cov) + process.nugget_variance + noise)
    assert (np.abs(mean - truth) < 1.96 * sds).mean() > 0.85


def test_gradient_is_that_of_the_objective():
    objective = _NegativeLogLikelihood(*draw_data(15), bias=1.0)
    theta = np.array([-1.0, 0.3, 0.7, -4.0])
    error = check_grad(lambda t: objective(t)[0], lambda t: objective(t)[1], theta)
    assert error < 1e-4 * np.abs(objective(theta)[1]).max()


def test_covariance_is_valid_and_restored_from_json():
    process = fit_residual_process(*draw_data(20))
    restored = ResidualProcess.from_dict(json.loads(json.dumps(process.to_dict())))
    others = draw_data(10, seed=2)[0]
    (mean, cov), (same_mean, same_cov) = process.predict(others), restored.predict(others)
    assert (mean == same_mean).all() and (cov == same_cov).all()
    assert np.linalg.eigvalsh(cov).min() > -1e-9
    # Far from all points the signal is unknown; the bias is known in part.
    far = np.diag(process.predict(others + 100.0)[1])
    assert (far > process.signal_variance).all()
    assert (far < process.signal_variance + BIAS_VARIANCE).all()
