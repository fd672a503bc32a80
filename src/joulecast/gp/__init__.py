"""Gaussian processes over arrays: this package knows no networks, devices or observations.

Two processes are in use. ``regression`` is exact and has one process per curve, as Rasmussen &
Williams, chapter 2. ``logsums`` is one process over logarithms that is observed through sums of
exponentials, with closed-form gradients; its docstring has the notation.

    regression      one exact process per curve, or per kind of kernel
    logsums         a process observed through sums
    kernels         Matern 5/2
    lognormal       intervals and probabilities of positive quantities
    linalg          products, Cholesky factors and sparse sums in one thread

Predicting needs numpy alone; fitting also loads scipy.
"""
