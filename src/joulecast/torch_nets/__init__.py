"""The PyTorch runtime: read, build, train and prune modules. No other package imports torch."""
