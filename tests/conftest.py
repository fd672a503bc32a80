"""How laws are tried: the same examples every time, and no clock in the verdict."""

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
