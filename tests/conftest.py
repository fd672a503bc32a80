"""Configure hypothesis, threads, and the size report at the end of a run."""

import ast
import os
import tempfile
from pathlib import Path

# Before numpy and torch are imported: tests run in parallel, and threads that spin while they wait
# for each other take twice the time.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Tests that run in parallel must not wait for each other's locks of this processor.
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="joulecast-tests-")

from hypothesis import HealthCheck, settings

from browser import chromium  # noqa: F401
from postgres_server import postgres_server, postgres_url  # noqa: F401

settings.register_profile(
    "joulecast",
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("joulecast")

SOURCE = Path(__file__).parents[1] / "src" / "joulecast"


def pytest_terminal_summary(terminalreporter) -> None:
    """Report the largest modules and functions."""
    modules, functions = [], []
    for path in SOURCE.rglob("*.py"):
        text, name = path.read_text(encoding="utf-8"), str(path.relative_to(SOURCE))
        modules.append((sum(1 for line in text.splitlines() if line.strip()), name))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                functions.append((node.end_lineno - node.lineno, f"{name}:{node.name}"))
    terminalreporter.section("largest modules and functions")
    for lines, name in sorted(modules, reverse=True)[:3] + sorted(functions, reverse=True)[:3]:
        terminalreporter.write_line(f"{lines:5} lines  {name}")
