"""The runtime for MNN, the framework that phones train with."""
