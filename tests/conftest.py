"""Configure hypothesis and threads, and offer the fixtures that many tests share."""

import os
import tempfile

# Before numpy and torch are imported: tests run in parallel, and threads that spin while they wait
# for each other take twice the time.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Tests that run in parallel must not wait for each other's locks of this processor.
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="joulecast-tests-")

from hypothesis import HealthCheck, settings

from browser import chromium  # noqa: F401
from postgres_server import postgres_server, postgres_url  # noqa: F401
from shells import profile_file, profiled, shell, store_file, write  # noqa: F401

settings.register_profile(
    "joulecast",
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("joulecast")
