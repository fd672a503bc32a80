"""How laws are tried: the same examples every time, and no clock in the verdict."""

import os

# Before numpy and torch are imported: tests run side by side, and threads that spin while they
# wait for each other take twice the time.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from hypothesis import HealthCheck, settings

settings.register_profile(
    "joulecast",
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("joulecast")
