"""Results name the commit that made them, and whether it was changed."""

import subprocess

import pytest

from joulecast.testing.commits import find_commit


@pytest.fixture
def clone(tmp_path):
    def git(*words):
        names = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", "-C", str(tmp_path), *names, *words], check=True)

    (tmp_path / "results").mkdir()
    for name in ("run.py", "results/kept.json"):
        (tmp_path / name).write_text("1")
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "first")
    return tmp_path


def test_a_clean_clone_is_its_commit(clone):
    commit = find_commit(str(clone / "run.py"))
    assert len(commit) >= 7 and not commit.endswith("+")


def test_changes_are_told_and_new_results_are_none(clone):
    commit = find_commit(str(clone / "run.py"))
    (clone / "results" / "kept.json").write_text("2")
    (clone / "new.txt").write_text("2")
    assert find_commit(str(clone / "run.py")) == commit
    (clone / "run.py").write_text("2")
    assert find_commit(str(clone / "run.py")) == commit + "+"


def test_outside_a_clone_there_is_none(tmp_path):
    assert find_commit(str(tmp_path / "run.py")) == ""
