"""Contract suites: what every meter, runtime, store and estimator must keep to, to inherit."""
