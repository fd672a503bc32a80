"""Cheap cases of the golden outputs, in a process of their own.

All cases: ``python tests/golden/check.py``.
"""

import subprocess
import sys
from pathlib import Path

CHECK = Path(__file__).parent / "check.py"


def test_cheap_cases_answer_as_recorded():
    words = [sys.executable, str(CHECK), "--quick", "--tolerance", "1e-6"]
    run = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "cases are equal" in run.stdout
