"""Gaussian processes over arrays: this package knows no networks, devices or observations.

Two processes are in use. ``regression`` fits one process per curve, as Rasmussen & Williams,
chapter 2, with scikit-learn. All other modules are one exact process that is observed through sums
of its inputs, with closed-form gradients; ``inputs`` defines it and has the notation.

    inputs              inputs as arrays, and observed sums of them
    hyperparameters     their names, the vector θ and its prior
    kernels             Matern 5/2
    covariance          prior covariance between inputs
    kernel_gradients    the same for groups of inputs, with gradients
    log_posterior       negative log posterior of θ and its gradient
    fitting             MAP estimate and Laplace draws of θ
    conditioning        the posterior under each draw
    weighted_sums       sums to predict, and their prior variance
    prediction          mean, variance and covariance of sums
    variance_reduction  what a further measurement would gain
    lognormal           intervals and probabilities of positive quantities
    linalg              products, Cholesky factors and sparse sums in one thread

Predicting needs numpy alone; fitting also loads scipy, and scikit-learn for ``regression``.
"""
