"""The store in PostgreSQL: its contract, several processes, and a server that fails."""

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import psycopg
import pytest

from joulecast.errors import MissingError, StoreError
from joulecast.store import open_store, profile_key
from joulecast.testing.stores import StoreContract, make_observation, make_profile
from postgres_server import PASSWORD

NO_PROFILES = Path(os.devnull) / "nothing"
KEY = profile_key(make_observation())

OPENER = """
import sys
import alembic.command
from joulecast.store import open_store
print("ready", flush=True)
sys.stdin.readline()
open_store(sys.argv[1]).close()
"""


def open_server(url, **options):
    return open_store(url, shipped=NO_PROFILES, **options)


@pytest.fixture(scope="module")
def shared_url(postgres_server):
    """Return the URL of a database for tests that remove what they add."""
    return postgres_server.create_database()


class TestPostgres(StoreContract):
    """The contract with a server."""

    @pytest.fixture
    def store(self, shared_url):
        with open_server(shared_url) as opened:
            yield opened
            for one in opened.list_profiles():
                opened.remove_profile(one.key)


def test_first_users_at_once_create_the_tables_together(postgres_url):
    command = [sys.executable, "-c", OPENER, postgres_url]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    openers = [subprocess.Popen(command, **pipes) for _ in range(3)]
    for opener in openers:
        assert opener.stdout.readline() == "ready\n"
    for opener in openers:
        opener.stdin.write("\n")
        opener.stdin.flush()
    assert [opener.communicate() and opener.returncode for opener in openers] == [0] * 3
    with open_server(postgres_url) as store:
        store.add_observation(make_observation())
        assert store.load_observations(KEY) == (make_observation(),)


def test_fits_can_be_saved_at_once(postgres_url):
    def save(number):
        with open_server(postgres_url) as store:
            for _ in range(20):
                store.save_fit(KEY, "flops", {"slope": number})

    with open_server(postgres_url) as store:
        store.add_observation(make_observation())
        with ThreadPoolExecutor() as pool:
            list(pool.map(save, range(3)))
        assert store.load_fit(KEY, "flops")["slope"] in range(3)


def test_observations_are_added_while_their_profile_is_removed(postgres_url):
    def add(first):
        with open_server(postgres_url) as store:
            for number in range(first, first + 20):
                store.add_observation(make_observation(number))

    with open_server(postgres_url) as store, ThreadPoolExecutor() as pool:
        open_server(postgres_url).close()
        added = [pool.submit(add, first) for first in (0, 20)]
        while not all(one.done() for one in added):
            with suppress(MissingError):
                store.remove_profile(KEY)
        assert [one.result() for one in added] == [None, None]


def test_several_hosts_may_be_named(postgres_server, postgres_url):
    database = postgres_url.rsplit("/", 1)[1]
    hosts = f"host=127.0.0.1:1&host=127.0.0.1:{postgres_server.port}&connect_timeout=5"
    with open_server(f"postgresql://joulecast:{PASSWORD}@/{database}?{hosts}") as store:
        store.add_observation(make_observation())
        assert store.load_observations(KEY) == (make_observation(),)


def test_place_hides_the_password(postgres_url):
    with open_server(f"{postgres_url}?application_name=x") as store:
        assert store.place.endswith("?application_name=x")
        assert PASSWORD not in store.place


@pytest.mark.parametrize(
    ("user", "database", "reason"),
    [
        ("joulecast:wr0ng", "postgres", "password authentication failed"),
        (f"nobody:{PASSWORD}", "postgres", "password authentication failed"),
        (f"joulecast:{PASSWORD}", "nothing", 'database "nothing" does not exist'),
    ],
)
def test_user_or_database_that_does_not_exist_is_named(postgres_server, user, database, reason):
    with pytest.raises(StoreError, match=reason) as caught:
        open_server(postgres_server.make_url(database, user))
    message = str(caught.value)
    assert "\n" not in message
    assert PASSWORD not in message and "wr0ng" not in message


@pytest.mark.parametrize(("host", "reason"), [("127.0.0.1:1", "refused"), ("x" * 300, "no host")])
def test_server_that_is_not_there_is_an_error(host, reason):
    with pytest.raises(StoreError, match=reason) as caught:
        open_server(f"postgresql://me:{PASSWORD}@{host}/db")
    assert "\n" not in str(caught.value) and PASSWORD not in str(caught.value)


def test_frozen_server_is_given_up_and_used_again_later(postgres_server, postgres_url):
    with open_server(postgres_url, wait_s=1.0) as store:
        store.add_observation(make_observation())
        with postgres_server.freeze():
            started_s = time.monotonic()
            with pytest.raises(StoreError, match=r"not answered for 1 s|timeout expired") as caught:
                store.add_observation(make_observation(1))
            assert time.monotonic() - started_s < 10
            assert "\n" not in str(caught.value)
            with pytest.raises(StoreError), closing(open_server(postgres_url, wait_s=1.0)):
                raise AssertionError("a frozen server was opened")
        store.add_observation(make_observation(1))
        assert len(store.load_observations(KEY)) == 2


def test_restart_of_the_server_is_waited_for(postgres_server, postgres_url):
    with open_server(postgres_url) as store:
        with store.claim_trial(make_observation()) as stored:
            assert stored == ()
            postgres_server.stop()
            later = threading.Timer(1.0, postgres_server.start)
            later.start()
            store.add_observation(make_observation())
            later.join()
        postgres_server.stop()
        postgres_server.start()
        with store.claim_trial(make_observation()) as stored:
            assert stored == (make_observation(),)


def test_read_only_server_is_known_before(postgres_url):
    open_server(postgres_url).close()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    with open_server(postgres_url) as store:
        assert store.list_profiles() == ()
        with pytest.raises(StoreError, match="read but not written"):
            store.check_writable()
        with pytest.raises(StoreError, match="read but not written"):
            store.import_profile(make_profile(make_observation()))


def test_database_of_another_program_is_refused(postgres_url):
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE alembic_version (version_num TEXT)")
    with pytest.raises(StoreError, match="another program"):
        open_server(postgres_url)
