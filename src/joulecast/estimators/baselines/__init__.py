"""Baselines to compare with: FLOPs and NeuralPower."""
