"""Stores in SQLite and PostgreSQL: contract, location, errors, shipped profiles, processes."""

import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import psycopg
import pytest
import sqlalchemy as sa

from benchmarks.robustness.hostile_inputs import damage_bytes
from joulecast.records import Observation, Trial, find_fit_count, load_record
from joulecast.store import open_store, profile_key
from joulecast.store.database import OBSERVATIONS, VERSION
from joulecast.store.files import write_profile
from joulecast.store.places import choose_place
from joulecast.store.profiles import SHIPPED, find_shipped_folder
from joulecast.system.errors import FileError, InputError, JoulecastError, MissingError, StoreError
from joulecast.testing.stores import make_observation, make_profile
from postgres_server import PASSWORD
from refusals import refusal
from store_properties import StoreProperties, open_bare

NOBODY_UID = 65534
KEY = profile_key(make_observation())


@pytest.fixture
def place(tmp_path):
    return tmp_path / "store.sqlite"


@pytest.fixture
def store(place):
    with open_bare(place) as opened:
        yield opened


@pytest.fixture(scope="module")
def server_store(postgres_server):
    with open_bare(postgres_server.empty_database("contract")) as opened:
        yield opened


class TestStores(StoreProperties):
    """The contract with a file, in memory and with a server."""

    @pytest.fixture(params=["file", "memory", "server"])
    def store(self, request, place):
        if request.param != "server":
            with open_bare(place if request.param == "file" else ":memory:") as opened:
                yield opened
            return
        store = request.getfixturevalue("server_store")
        yield store
        for one in store.list_profiles():
            store.remove_profile(one.key)


# -- location -----------------------------------------------------------------------------------


def test_argument_is_preferred_to_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("JOULECAST_STORE", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert choose_place() == str(tmp_path / ".local/share/joulecast/store.sqlite")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert choose_place() == str(tmp_path / "data/joulecast/store.sqlite")
    monkeypatch.setenv("JOULECAST_STORE", "~/mine.sqlite")
    assert choose_place() == str(tmp_path / "mine.sqlite")
    assert choose_place("other.sqlite") == "other.sqlite"
    assert open_bare(f"sqlite:///{tmp_path}/other.sqlite").place == f"{tmp_path}/other.sqlite"
    for name in ("JOULECAST_STORE", "XDG_DATA_HOME"):
        monkeypatch.delenv(name)
    monkeypatch.setattr(Path, "home", Mock(side_effect=RuntimeError))
    with pytest.raises(StoreError, match="set JOULECAST_STORE"):
        choose_place()


@pytest.mark.parametrize(
    "place",
    [
        "mysql://host/db",
        "://",
        "postgresql+psycopg2://me:secret@host/db",
        "postgresql+oddity://me:secret@host/db",
        "oracle://me:secret@host/db",
        "redis://:secret@host",
        "postgresql://me:secret@host:port/db",
        "postgresql://me:secret@host:99999/db",
        "postgresql://me:a@secret@host/db",
        "postgresql://me:a@b:secret@host/db",
        "postgresql://me:secret@host/db?row_factory=x",
        "sqlite://me:secret@host/file",
        "sqlite:///file?timeout=x&password=secret",
        "sqlite:///a%00b?password=secret",
        "postgresql:ann:secret@db/lab",
        "postgresql//ann:secret@db/lab",
        "//ann:secret@db",
    ],
)
@pytest.mark.parametrize("create", [True, False])
def test_error_for_an_unusable_url_hides_the_password(place, create):
    with refusal((InputError, StoreError)) as caught:
        open_bare(place, create=create)
    assert "secret" not in "".join(traceback.format_exception(caught.value))


def test_folder_may_have_a_name_like_a_url(tmp_path):
    (tmp_path / "a:b@c").mkdir()
    open_bare(tmp_path / "a:b@c" / "store.sqlite").close()


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "POSTGRESQL", "postgresql+psycopg"])
def test_error_for_a_missing_driver_hides_the_password(monkeypatch, scheme):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.delitem(sys.modules, "joulecast.store.postgres", raising=False)
    with refusal(MissingError, r"pip install 'joulecast\[postgres\]'") as caught:
        open_bare(f"{scheme}://me:secret@host/db")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("place", "reason"),
    [("x" * 300, "name too long"), ("~nobody-has-this-name/s", "no home"), ("a\0b", "null byte")],
)
@pytest.mark.parametrize("create", [True, False])
def test_paths_that_cannot_exist_are_refused(tmp_path, monkeypatch, place, reason, create):
    monkeypatch.chdir(tmp_path)
    with refusal(StoreError, f"(?i){reason}"):
        open_bare(place, create=create)


def test_only_folders_of_the_usual_store_are_created(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "a b" / "c%d"))
    monkeypatch.delenv("JOULECAST_STORE", raising=False)
    mistyped = tmp_path / "mistyped" / "store.sqlite"
    with refusal(StoreError, f"no folder {mistyped.parent}: create it"):
        open_bare(mistyped)
    with open_bare(mistyped, create=False) as store:
        with pytest.raises(StoreError, match="no store at"):
            store.add_observation(make_observation())
        assert store.list_profiles() == ()
    assert list(tmp_path.iterdir()) == []
    with open_bare() as store:
        store.add_observation(make_observation())
    with open_bare() as store:
        assert store.load_observations(KEY) == (make_observation(),)
        folder = Path(store.place).parent
    assert folder == tmp_path / "a b" / "c%d" / "joulecast"
    assert [path.name for path in folder.iterdir()] == ["store.sqlite"]


def test_empty_file_becomes_a_store(place):
    place.touch()
    with open_bare(place, create=False) as store:
        assert store.list_profiles() == ()
    assert place.read_bytes() == b""
    with open_bare(place) as store:
        store.add_observation(make_observation())
        assert len(store.list_profiles()) == 1


# -- files that are no store, and errors --------------------------------------------------------


def make_newer(place):
    open_bare(place).close()
    with closing(sqlite3.connect(place)) as connection, connection:
        connection.execute(f"UPDATE {VERSION.name} SET version_num = '9999'")


def make_foreign(place):
    with closing(sqlite3.connect(place)) as connection, connection:
        connection.execute("CREATE TABLE alembic_version (version_num TEXT)")


def make_damaged(place):
    with open_bare(place) as store:
        store.import_profile(make_profile(*map(make_observation, range(30))))
    content = bytearray(place.read_bytes())
    content[4096:] = bytes(range(16)) * ((len(content) - 4096) // 16)
    place.write_bytes(content)


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (make_damaged, "damaged; .* import exported profiles"),
        (make_newer, r"newer version of Joulecast \(schema 9999.*upgrade"),
        (make_foreign, "another program"),
        (lambda place: place.write_bytes(b"no database, but long enough" * 80), "not a SQLite"),
    ],
)
def test_other_file_is_refused_and_unchanged(place, make, reason, create):
    make(place)
    before = place.read_bytes()
    for address in (place, f"sqlite:///file:{place}?mode=ro&uri=true"):
        named = refusal(StoreError, f"(store|database) {place}.*{reason}")
        with named, open_bare(address, create=create) as store:
            store.list_profiles()
    assert place.read_bytes() == before


def test_full_disk_loses_nothing(store, place):
    kept = [make_observation(number) for number in range(3)]
    for seen in kept:
        store.add_observation(seen)
    # SQLite's own size limit gives the same error as a full disk.
    with store.database.engine.connect() as connection:
        pages = connection.scalar(sa.text("PRAGMA page_count"))
        connection.execute(sa.text(f"PRAGMA max_page_count = {pages}"))
    large = make_observation(9, source="x" * 100_000)
    with refusal(StoreError, f"{place}.*no space left; free some"):
        store.add_observation(large)
    with pytest.raises(StoreError, match="no space left"):
        store.import_profile(make_profile(make_observation(5), large))
    assert store.load_observations(profile_key(large)) == tuple(kept)
    store.close()
    with open_bare(place) as again:
        again.add_observation(large)
        assert again.load_observations(profile_key(large)) == (*kept, large)


@pytest.fixture
def full_disk():
    """Yield a file system of 512 KiB."""
    folder = Path(tempfile.mkdtemp())
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        folder.rmdir()
        pytest.skip("only root can mount a small file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)
    folder.rmdir()


def test_store_on_a_full_disk_can_be_read(full_disk):
    place = full_disk / "store.sqlite"
    with open_bare(place) as store:
        store.add_observation(make_observation())
    with (full_disk / "filler").open("wb", buffering=0) as filler, suppress(OSError):
        while True:
            filler.write(b"x" * 4096)
    with open_bare(place) as store:
        assert store.find_profile("board").observations == (make_observation(),)
        for write in (partial(store.add_observation, make_observation(1)), store.check_writable):
            with refusal(StoreError, "no space left; free some"):
                write()
    (full_disk / "filler").unlink()
    with open_bare(place) as store:
        store.add_observation(make_observation(1))
        assert len(store.find_profile("board").observations) == 2


def test_locked_store_is_an_error_after_waiting(store, place):
    holder = sqlite3.connect(place, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    with open_bare(place, wait_s=0.0) as impatient:
        # With a write-ahead log, readers need not wait for anybody.
        assert impatient.list_profiles() == ()
        assert holder.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        with refusal(StoreError, "another program has locked it; wait"):
            impatient.add_observation(make_observation())
        holder.execute("COMMIT")
        impatient.add_observation(make_observation())
        assert len(impatient.list_profiles()) == 1
    holder.close()


def test_folder_and_path_below_a_file_are_refused(tmp_path):
    (tmp_path / "file").write_text("keep me")
    for place, reason in ((tmp_path / "file/store", "cannot be created"), (tmp_path, "a folder")):
        with refusal(StoreError, reason):
            open_bare(place)
    assert (tmp_path / "file").read_text() == "keep me"


@contextmanager
def plain_user():
    """Drop the rights of root, who can write whatever the permissions are."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(NOBODY_UID)
    try:
        yield
    finally:
        os.seteuid(before)


@pytest.fixture
def locked_folder():
    """Yield a folder with a store of one observation that a plain user can only read."""
    folder = Path(tempfile.mkdtemp())
    with open_bare(folder / "store.sqlite") as store:
        store.add_observation(make_observation())
    (folder / "store.sqlite").chmod(0o444)
    folder.chmod(0o555)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


@pytest.mark.parametrize("create", [True, False])
def test_read_only_store_can_be_read_but_not_written(locked_folder, create):
    place = locked_folder / "store.sqlite"
    before = place.read_bytes()
    with plain_user(), open_bare(place, create=create) as store:
        assert store.find_profile("board").observations == (make_observation(),)
        with refusal(StoreError, f"{place}.*read but not written; allow writing"):
            store.add_observation(make_observation(1))
        with pytest.raises(StoreError, match="read but not written"):
            store.check_writable()
        assert len(store.load_profile(KEY).observations) == 1
    assert place.read_bytes() == before
    assert [path.name for path in locked_folder.iterdir()] == ["store.sqlite"]


def test_reading_a_read_only_file_leaves_nothing_beside_it(locked_folder):
    place = locked_folder / "store.sqlite"
    locked_folder.chmod(0o777)
    with plain_user(), open_bare(place, create=False) as store:
        assert store.find_profile("board").observations == (make_observation(),)
        assert [path.name for path in locked_folder.iterdir()] == ["store.sqlite"]
    # Its owner can go on.
    place.chmod(0o644)
    with open_bare(place) as store:
        store.add_observation(make_observation(1))
    assert [path.name for path in locked_folder.iterdir()] == ["store.sqlite"]


def test_read_only_file_is_read_with_what_is_in_the_log(locked_folder):
    place = locked_folder / "store.sqlite"
    for path, mode in ((locked_folder, 0o777), (place, 0o644)):
        path.chmod(mode)
    with open_bare(place) as writer:
        writer.add_observation(make_observation(1))
        place.chmod(0o444)
        with plain_user(), open_bare(place, create=False) as store:
            assert len(store.find_profile("board").observations) == 2


def test_store_that_cannot_be_created_or_read_is_refused(locked_folder):
    for new in (locked_folder / "new.sqlite", locked_folder / "deep" / "new.sqlite"):
        with plain_user(), refusal(StoreError, "JOULECAST_STORE"):
            open_bare(new)
    assert [path.name for path in locked_folder.iterdir()] == ["store.sqlite"]
    place = locked_folder / "store.sqlite"
    place.chmod(0o000)
    with plain_user(), refusal(StoreError, f"{place}.*permissions"):
        open_bare(place)


# Rows that were changed after they were written are refused, never read as something else


@pytest.fixture
def filled(place, store):
    """Return the path of a store with three observations and a fit."""
    for number in range(3):
        store.add_observation(make_observation(number))
    store.save_fit(KEY, "flops", {"rows": {"a": 0.25}, "version": 1})
    store.close()
    return place


def read_all(place):
    with open_bare(place, create=False, wait_s=0.2) as store:
        profiles = [store.load_profile(one.key) for one in store.list_profiles()]
        return [profile.to_dict() for profile in profiles]


def execute(place, statement):
    with closing(sqlite3.connect(place)) as connection, connection:
        connection.execute(statement)


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("UPDATE observations SET payload = replace(payload, '0.25,', '0.26,')", "observation 2"),
        ("UPDATE observations SET payload = replace(payload, '\"batch\":3', '\"batch\":4')",
         "observation 3"),
        ("UPDATE observations SET payload = x'00ff'", "observation 1"),
        ("UPDATE observations SET digest = 'x'", "observation 1"),
        ("UPDATE fits SET payload = replace(payload, '0.25', '0.26')", "the fit of flops"),
        ("UPDATE fits SET payload = x'7b'", "the fit of flops"),
        ("UPDATE profiles SET covers = 'gpu'", "profile "),
        ("UPDATE profiles SET device = replace(device, 'board', 'brand')", "profile "),
    ],
)  # fmt: skip
def test_changed_row_is_damage(filled, statement, what):
    execute(filled, statement)
    with refusal(StoreError, f"{what}.*is damaged"):
        read_all(filled)


def test_text_that_cannot_be_decoded_is_damage_and_not_tried_again(filled, monkeypatch):
    execute(filled, "UPDATE observations SET payload = CAST(x'ff' AS TEXT)")
    monkeypatch.setattr("joulecast.store.database.time.sleep", pytest.fail)
    with pytest.raises(StoreError, match="the database is damaged; move it away"):
        read_all(filled)


def test_damaged_file_never_reads_as_something_else(filled):
    before, content = read_all(filled), filled.read_bytes()
    rng = random.Random(14)
    for _ in range(60):
        for path in filled.parent.glob("store.sqlite*"):
            path.unlink()
        filled.write_bytes(damage_bytes(content, rng))
        try:
            found = read_all(filled)
        except JoulecastError as error:
            assert "\n" not in str(error)
        else:
            # An older or smaller state is possible: SQLite itself has no checksums of its pages.
            assert all(_is_part(one, before) for one in found)


def _is_part(profile, known):
    """Return whether a profile has only observations and fits of one that is known."""
    (whole,) = known
    rest = {key: value for key, value in profile.items() if key not in ("observations", "fits")}
    return (
        all(whole[key] == value for key, value in rest.items())
        and all(_bare(one) in map(_bare, whole["observations"]) for one in profile["observations"])
        and all(whole["fits"].get(name) == fit for name, fit in profile["fits"].items())
    )


def _bare(observation):
    """Return an observation without names of layers, which are labels."""
    trial = Trial.from_dict(observation["trial"])
    return {**observation, "trial": trial.key}


def test_fit_of_an_earlier_version_has_no_checksum(filled):
    execute(filled, """UPDATE fits SET payload = '{"rows": {}, "version": 1}'""")
    assert read_all(filled)[0]["fits"] == {"flops": {"rows": {}, "version": 1}}


@pytest.mark.parametrize("value", [float("nan"), -1.0, 1e300])
def test_observation_that_could_not_be_read_again_is_not_stored(filled, value):
    wrong = make_observation(9)
    object.__setattr__(wrong, "energy_j", value)
    with open_bare(filled) as store:
        with pytest.raises(InputError, match="energy_j"):
            store.add_observation(wrong)
        assert len(store.load_observations(KEY)) == 3


# -- shipped profiles ---------------------------------------------------------------------------


@pytest.fixture
def shipped(tmp_path):
    folder = tmp_path / "shipped"
    folder.mkdir()
    for name in ("H200", "Xavier"):
        write_profile(make_profile(make_observation(board=name), flops={}), folder / f"{name}.json")
    return folder


def test_shipped_profiles_are_found(place, shipped):
    with open_store(place, create=False, shipped=shipped) as store:
        assert store.find_profile("h2").observations == (make_observation(board="H200"),)
        listed = [(one.device, one.shipped) for one in store.list_profiles()]
        assert listed == [("H200", True), ("Xavier", True)]
        assert store.find_profile("Xavier").fits == {"flops": {}}
        with pytest.raises(MissingError, match=r"H200 \(shipped\), Xavier \(shipped\).*--on"):
            store.find_profile("phone")


def test_profile_of_the_store_comes_before_a_shipped_one(place, shipped):
    own = make_observation(4, board="H200")
    other = make_observation(5, board="H200 here")
    with open_store(place, shipped=shipped) as store:
        store.add_observation(own)
        # Own observations are added to those that ship for the same profile.
        *known, last = store.find_profile("H200").observations
        assert last == own and len(known) == len(set(known))
        assert [one.shipped for one in store.list_profiles()] == [False, True]
        store.remove_profile(profile_key(own))
        store.add_observation(other)
        assert store.find_profile("H2").observations == (other,)
        with pytest.raises(MissingError):
            store.remove_profile(profile_key(own))


def refuse(cls=Observation, *args):
    assert cls is not Observation, "an observation was parsed"
    return load_record(cls, *args)


def test_finding_and_fitting_a_profile_parse_no_observation(place, shipped, monkeypatch):
    own = make_observation(4, board="H200", run="run 2")
    with open_store(place, shipped=shipped) as store:
        store.add_observation(own)
        with monkeypatch.context() as patch:
            patch.setattr(Observation, "from_dict", refuse)
            patch.setattr("joulecast.store.store.load_record", refuse)
            store.save_fit(profile_key(own), "forest", {"trees": 3})
            found = store.find_profile("H200")
            assert len(found.observations) == 2
            assert found.fits["forest"] == {"trees": 3}
            assert len(store.find_profile("Xavier").observations) == 1
        assert found.observations == (make_observation(board="H200"), own)


def test_shipped_fits_stand_in_for_those_the_store_lacks(place, shipped):
    own = make_observation(4, board="H200", run="run 2")
    known = make_profile(make_observation(board="H200")).add_fits({"flops": {}, "forest": {}})
    write_profile(known, shipped / "H200.json")
    with open_store(place, shipped=shipped) as store:
        store.add_observation(own)
        fits = store.find_profile("H200").fits
        assert fits == {"flops": {}, "forest": {}}
        assert find_fit_count(fits, "flops") == 1
        store.save_fit(profile_key(own), "flops", {"slope": 2})
        fits = store.find_profile("H200").fits
        assert fits == {"flops": {"slope": 2}, "forest": {}}
        # It was made from the shipped observation as well.
        assert find_fit_count(fits, "flops") == 2
        assert find_fit_count(fits, "forest") == 1


def test_observation_that_ships_and_is_stored_counts_once(place, shipped):
    same = make_observation(board="H200")
    with open_store(place, shipped=shipped) as store:
        store.import_profile(make_profile(same, make_observation(1, board="H200")))
        found = store.find_profile("H200")
        assert found.observations == (same, make_observation(1, board="H200"))
        store.save_fit(found.key, "forest", {})
        assert find_fit_count(store.load_profile(found.key).fits, "forest") == 2
        # An imported fit keeps the number of its observations.
        more = replace(found, fits={}).add_fits({"flops": {}})
        store.import_profile(replace(more, observations=more.observations[:1]))
        assert find_fit_count(store.load_profile(found.key).fits, "flops") == 2


def test_variable_names_another_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("JOULECAST_PROFILES", raising=False)
    assert find_shipped_folder() == SHIPPED
    monkeypatch.setenv("JOULECAST_PROFILES", str(tmp_path))
    assert find_shipped_folder() == tmp_path
    monkeypatch.setenv("JOULECAST_PROFILES", str(tmp_path / "none"))
    with pytest.raises(StoreError, match="not a folder: create it"):
        find_shipped_folder()


def open_folder(folder):
    return open_store(folder / "none.sqlite", create=False, shipped=folder)


def test_profiles_of_a_folder_are_read_and_marked(tmp_path):
    profile = make_profile(make_observation(3), flops={}, forest={})
    write_profile(profile, tmp_path / "board.json")
    store = open_folder(tmp_path)
    found, (summary,) = store.load_profile(profile.key), store.list_profiles()
    assert found == profile and found.shipped
    assert (summary.key, summary.device, summary.shipped) == (profile.key, "board", True)
    assert (summary.observation_count, summary.estimators) == (1, ("flops", "forest"))
    assert summary.changed_at_s == make_observation(3).taken_at_s
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(FileError, match=r"bad\.json"):
        open_folder(tmp_path).list_profiles()


def test_a_file_is_read_again_only_if_it_changed(tmp_path):
    profile = make_profile(make_observation(3))
    write_profile(profile, tmp_path / "board.json")
    first, again = (open_folder(tmp_path).load_profile(profile.key) for _ in range(2))
    assert again is first
    write_profile(make_profile(make_observation(3), make_observation(4)), tmp_path / "board.json")
    assert len(open_folder(tmp_path).load_observations(profile.key)) == 2


# -- several processes --------------------------------------------------------------------------

WRITER = """
import sys
from joulecast.store import open_store
from joulecast.testing.stores import make_observation

place, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
with open_store(place) as store:
    for number in range(first, first + count):
        store.add_observation(make_observation(number))
        print(number, flush=True)
"""


def start_writer(place, first, count):
    command = [sys.executable, "-c", WRITER, str(place), str(first), str(count)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def let_write(*writers):
    """Wait until all are ready, then start them at once."""
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.stdin.write("\n")
        writer.stdin.flush()


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_two_processes_can_create_and_write_a_store_at_once(request, place, kind):
    if kind == "postgresql":
        place = request.getfixturevalue("postgres_url")
    writers = [start_writer(place, first, 25) for first in (0, 100)]
    let_write(*writers)
    assert [writer.communicate() and writer.returncode for writer in writers] == [0, 0]
    with open_bare(place) as store:
        seen = store.load_observations(KEY)
    numbers = [one.trial.setup.batch - 1 for one in seen]
    # A stable sort: each writer's own stay in order.
    assert sorted(numbers, key=lambda number: number >= 100) == [*range(25), *range(100, 125)]


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_what_is_read_together_is_of_one_moment(request, place, kind):
    if kind == "postgresql":
        place = request.getfixturevalue("postgres_url")

    def read(connection):
        for number in range(2):
            yield connection.scalar(sa.select(sa.func.count(OBSERVATIONS.c.id)))
            other.add_observation(make_observation(number))

    with open_bare(place) as store, open_bare(place) as other:
        assert store.database.run(lambda connection: list(read(connection))) == [0, 0]
        assert len(store.load_observations(KEY)) == 2


def test_slow_libraries_are_imported_only_if_they_are_needed(store, place):
    code = (
        "import sys; from joulecast.store import open_store\n"
        "open_store('/none/store.sqlite', create=False).list_profiles()\n"
        "assert 'sqlalchemy' not in sys.modules\n"
        "open_store(sys.argv[1]).close()\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(place)], check=True)


# -- PostgreSQL: writers at once, and a server that fails ---------------------------------------


def test_fits_and_observations_are_saved_at_once_while_profiles_are_removed(postgres_url):
    def save(number):
        with open_bare(postgres_url) as store:
            for _ in range(10):
                store.save_fit(KEY, "flops", {"slope": number})

    def add(first):
        with open_bare(postgres_url) as store:
            for number in range(first, first + 20):
                store.add_observation(make_observation(number))

    with open_bare(postgres_url) as store, ThreadPoolExecutor() as pool:
        store.add_observation(make_observation())
        list(pool.map(save, range(3)))
        assert store.load_fit(KEY, "flops")["slope"] in range(3)
        added = [pool.submit(add, first) for first in (0, 20)]
        while not all(one.done() for one in added):
            with suppress(MissingError):
                store.remove_profile(KEY)
        assert [one.result() for one in added] == [None, None]


def test_several_hosts_may_be_named(postgres_server, postgres_url):
    database = postgres_url.rsplit("/", 1)[1]
    hosts = f"host=127.0.0.1:1&host=127.0.0.1:{postgres_server.port}&connect_timeout=5"
    with open_bare(f"postgresql://joulecast:{PASSWORD}@/{database}?{hosts}") as store:
        assert store.place.endswith("connect_timeout=5") and PASSWORD not in store.place
        store.add_observation(make_observation())
        assert store.load_observations(KEY) == (make_observation(),)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("joulecast:wr0ng@SERVER/postgres", "password authentication failed"),
        (f"nobody:{PASSWORD}@SERVER/postgres", "password authentication failed"),
        (f"joulecast:{PASSWORD}@SERVER/nothing", 'database "nothing" does not exist'),
        (f"joulecast:{PASSWORD}@127.0.0.1:1/db", "refused"),
        (f"joulecast:{PASSWORD}@{'x' * 300}/db", "no host"),
    ],
)
def test_server_user_or_database_that_does_not_exist_is_one_line(postgres_server, url, reason):
    server = f"127.0.0.1:{postgres_server.port}"
    with refusal(StoreError, reason) as caught:
        open_bare(f"postgresql://{url.replace('SERVER', server)}")
    assert PASSWORD not in str(caught.value) and "wr0ng" not in str(caught.value)


def test_frozen_or_restarted_server_is_waited_for(postgres_server, postgres_url):
    with open_bare(postgres_url, wait_s=1.0) as store:
        store.add_observation(make_observation())
        with postgres_server.freeze():
            with refusal(StoreError, r"not answered for 1 s|timeout expired"):
                store.add_observation(make_observation(1))
            with pytest.raises(StoreError), closing(open_bare(postgres_url, wait_s=1.0)):
                raise AssertionError("a frozen server was opened")
    with open_bare(postgres_url) as store:
        with store.claim_trial(make_observation(1)) as stored:
            assert stored == ()
            postgres_server.stop()
            later = threading.Timer(0.5, postgres_server.start)
            later.start()
            store.add_observation(make_observation(1))
            later.join()
        postgres_server.restart()
        with store.claim_trial(make_observation(1)) as stored:
            assert stored == (make_observation(1),)
        assert len(store.load_observations(KEY)) == 2


def test_read_only_and_foreign_databases_are_known_before(postgres_server, postgres_url):
    open_bare(postgres_url).close()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    with open_bare(postgres_url) as store:
        assert store.list_profiles() == ()
        profile = make_profile(make_observation())
        for write in (store.check_writable, partial(store.import_profile, profile)):
            with pytest.raises(StoreError, match="read but not written"):
                write()
    postgres_server.empty_database(name)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE alembic_version (version_num TEXT)")
    with pytest.raises(StoreError, match="another program"):
        open_bare(postgres_url)
