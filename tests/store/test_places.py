"""Where the store is, found without the database's library."""

import subprocess
import sys
from pathlib import Path

import pytest

from joulecast.errors import StoreError
from joulecast.store.places import choose_place, is_missing_file


def test_the_argument_comes_before_the_environment_and_the_data_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("JOULECAST_STORE", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", "not/absolute")
    assert choose_place() == str(tmp_path / ".local/share/joulecast/store.sqlite")
    monkeypatch.setenv("JOULECAST_STORE", "~/mine.sqlite")
    assert choose_place() == str(tmp_path / "mine.sqlite")
    assert choose_place("~/other.sqlite") == str(tmp_path / "other.sqlite")
    assert choose_place("postgresql://host/~db") == "postgresql://host/~db"
    assert choose_place(":memory:") == ":memory:"


def test_without_a_home_folder_the_error_names_the_variable(monkeypatch):
    def fail():
        raise RuntimeError

    monkeypatch.delenv("JOULECAST_STORE", raising=False)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setattr(Path, "home", fail)
    with pytest.raises(StoreError, match="set JOULECAST_STORE"):
        choose_place()


def test_only_files_can_be_missing(tmp_path):
    assert is_missing_file(str(tmp_path / "none"))
    for place in (str(tmp_path), ":memory:", "sqlite:////none", "postgresql://host/db"):
        assert not is_missing_file(place)


def test_reading_shipped_profiles_imports_no_database():
    code = (
        "import sys\nfrom joulecast.store import open_store\n"
        "with open_store('/none/store.sqlite', create=False) as store: store.list_profiles()\n"
        "assert 'sqlalchemy' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "place",
    [
        "postgresql:ann:s3cret@db/lab",
        "postgresql//ann:s3cret@db/lab",
        "//ann:s3cret@db",
        "ann:s3@db",
    ],
)
def test_a_mistyped_url_is_refused_without_its_password(place):
    with pytest.raises(StoreError, match="postgresql://USER@HOST") as caught:
        choose_place(place)
    assert "s3" not in str(caught.value)


def test_a_folder_may_have_a_name_like_a_url(tmp_path):
    (tmp_path / "a:b@c").mkdir()
    place = str(tmp_path / "a:b@c" / "store.sqlite")
    assert choose_place(place) == place
