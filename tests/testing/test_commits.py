"""The commit that is recorded with benchmark results."""

import subprocess

import pytest

from benchmarks.common import find_commit


@pytest.fixture
def clone(tmp_path):
    def git(*arguments):
        names = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", "-C", str(tmp_path), *names, *arguments], check=True)

    (tmp_path / "results").mkdir()
    for name in ("run.py", "results/kept.json"):
        (tmp_path / name).write_text("1")
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "first")
    return tmp_path


def test_clean_clone_has_a_plain_commit(clone):
    commit = find_commit(str(clone / "run.py"))
    assert len(commit) >= 7 and not commit.endswith("+")


def test_only_changes_outside_results_are_marked(clone):
    commit = find_commit(str(clone / "run.py"))
    (clone / "results" / "kept.json").write_text("2")
    (clone / "new.txt").write_text("2")
    assert find_commit(str(clone / "run.py")) == commit
    (clone / "run.py").write_text("2")
    assert find_commit(str(clone / "run.py")) == commit + "+"


def test_commit_is_empty_outside_a_clone(tmp_path):
    assert find_commit(str(tmp_path / "run.py")) == ""
