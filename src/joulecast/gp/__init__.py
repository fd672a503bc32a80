"""Gaussian processes over arrays: this package knows no networks, devices or observations.

Two processes are in use. ``regression`` fits one process per curve, as Rasmussen & Williams,
chapter 2, with scikit-learn. ``logsums`` is one process over logarithms that is observed through
sums of exponentials, with closed-form gradients; its docstring has the notation.

    regression      one process per curve
    logsums         a process observed through sums
    weighted_sums   sums over inputs, as sparse matrices
    kernels         Matern 5/2
    lognormal       intervals and probabilities of positive quantities
    linalg          products, Cholesky factors and sparse sums in one thread

Predicting needs numpy alone; fitting also loads scipy, and scikit-learn for ``regression``.
"""
