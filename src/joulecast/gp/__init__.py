"""Gaussian processes over arrays: kernels, conditioning and hyper-parameters."""
