"""Test extensions of Joulecast: contract suites to inherit, and their helpers."""
