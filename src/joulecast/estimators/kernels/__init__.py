"""Estimators of fused kernels: one regression per kernel kind, and a network is their sum."""
