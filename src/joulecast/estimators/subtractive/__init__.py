"""The method of the AMPERE paper: one Gaussian process per layer type, fitted by subtraction."""
