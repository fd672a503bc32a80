"""Baselines to compare with: fits to the work of whole networks, and NeuralPower."""
