"""The store in PostgreSQL: its contract, several processes, and a server that fails."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial

import psycopg
import pytest

from joulecast.store import profile_key
from joulecast.system.errors import MissingError, StoreError
from joulecast.testing.stores import make_observation, make_profile
from postgres_server import PASSWORD
from refusals import refusal
from store_properties import StoreProperties, open_bare

KEY = profile_key(make_observation())

OPENER = """
import sys
import alembic.command
from joulecast.store import open_store
print("ready", flush=True)
sys.stdin.readline()
open_store(sys.argv[1]).close()
"""


@pytest.fixture(scope="module")
def server_store(postgres_server):
    with open_bare(postgres_server.empty_database("contract")) as opened:
        yield opened


class TestPostgres(StoreProperties):
    """The contract with a server."""

    @pytest.fixture
    def store(self, server_store):
        yield server_store
        for one in server_store.list_profiles():
            server_store.remove_profile(one.key)


def test_first_users_at_once_create_the_tables_together(postgres_url):
    command = [sys.executable, "-c", OPENER, postgres_url]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    openers = [subprocess.Popen(command, **pipes) for _ in range(2)]
    for opener in openers:
        assert opener.stdout.readline() == "ready\n"
    for opener in openers:
        opener.stdin.write("\n")
        opener.stdin.flush()
    assert [opener.communicate() and opener.returncode for opener in openers] == [0, 0]
    with open_bare(f"{postgres_url}?application_name=x") as store:
        store.add_observation(make_observation())
        assert store.load_observations(KEY) == (make_observation(),)
        assert store.place.endswith("?application_name=x") and PASSWORD not in store.place


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
