"""Start a real PostgreSQL server for tests.

``make test`` installs Debian's package ``postgresql`` where it can. Without a server its tests are
skipped, except in continuous integration.
"""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pytest

PASSWORD = "s3cret"


@pytest.fixture(scope="session")
def postgres_server():
    """Yield a running server, the same for all tests of a process."""
    programs = find_programs()
    if programs is None:
        reason = "PostgreSQL is not installed: apt-get install postgresql"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    with start_server(programs) as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server):
    """Return the URL of an empty database, the same for all tests: each has a thousand files."""
    return postgres_server.empty_database("test")


def find_programs():
    """Return the folder of the newest server's programs; None if there are none."""
    folders = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3])
    )
    folders = [*map(Path, filter(None, [shutil.which("initdb")])), *folders]
    return folders[-1].parent if folders else None


@contextmanager
def start_server(programs):
    """Create a server in a temporary folder; stop and remove it at the end."""
    folder = Path(tempfile.mkdtemp(prefix="joulecast-postgres-"))
    server = PostgresServer(programs, folder)
    try:
        server.create()
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder)


class PostgresServer:
    """A server on a free port, whose only user is ``joulecast``."""

    def __init__(self, programs, folder):
        self._programs, self._folder, self._databases = programs, folder, set()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        # PostgreSQL refuses to run as root.
        self._user = {}
        if os.geteuid() == 0:
            names = {entry.pw_name for entry in pwd.getpwall()}
            self._user = {"user": "postgres" if "postgres" in names else "nobody"}
            shutil.chown(folder, self._user["user"])

    def create(self):
        """Create the files of the server."""
        secret = self._folder / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        words = ("--no-sync", "--username=joulecast", "--locale=C.UTF-8", "--auth=scram-sha-256")
        self._run("initdb", *words, f"--pwfile={secret}")

    def start(self):
        """Start the server and wait until it answers."""
        options = f"-F -h 127.0.0.1 -p {self.port} -k {self._folder}"
        self._run("pg_ctl", "start", "-w", "-l", self._folder / "log", "-o", options)

    def stop(self):
        """Stop the server at once, if it runs; open connections are lost."""
        if self._pid_file.exists():
            self._run("pg_ctl", "stop", "-m", "immediate")

    def restart(self):
        """Stop and start the server."""
        self.stop()
        self.start()

    @property
    def _pid_file(self):
        return self._folder / "data" / "postmaster.pid"

    def _run(self, program, *words):
        done = subprocess.run(
            [self._programs / program, "-D", self._folder / "data", *words],
            cwd=self._folder, capture_output=True, text=True, check=False, **self._user,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    @contextmanager
    def freeze(self):
        """Stop all processes of the server for a while, as a machine that hangs does."""
        own = int(self._pid_file.read_text().split()[0])
        children = Path(f"/proc/{own}/task/{own}/children").read_text().split()
        pids = [own, *map(int, children)]
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                # A process that served a connection may have ended just before it was stopped.
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def empty_database(self, name):
        """Create a database, or empty it, and return its URL."""
        url = self.make_url(name)
        with psycopg.connect(self.make_url("postgres"), autocommit=True) as connection:
            if name not in self._databases:
                self._databases.add(name)
                connection.execute(f"CREATE DATABASE {name}")
            # An earlier test may have made it read-only, or left a killed program's connection.
            connection.execute(f"ALTER DATABASE {name} RESET ALL")
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name]
            )
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("DROP SCHEMA public CASCADE")
            connection.execute("CREATE SCHEMA public")
        return url

    def make_url(self, database, user=f"joulecast:{PASSWORD}"):
        """Return the URL of a database."""
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"
