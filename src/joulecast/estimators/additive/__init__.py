"""The default estimator: the energy of a network as the sum over its layers and blocks."""
