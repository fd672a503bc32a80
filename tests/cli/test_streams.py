"""Only results reach stdout, in any condition of stdout; names cannot control the terminal."""

import io
import json
import logging
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from joulecast.cli.progress import show_activity, show_bar
from joulecast.cli.streams import write_message
from joulecast.families import make_family
from joulecast.store.files import read_profile, write_network, write_profile
from joulecast.views.report import Report, make_table
from joulecast.views.terminal import make_console, print_report

PROGRAM = (sys.executable, "-c", "from joulecast.cli.main import main; main()")
COMMANDS = (["--help"], ["detect", "--json"], ["profiles", "list"])
TALKATIVE = """
import atexit, os, subprocess, sys
import torch
print("printed by the import")
atexit.register(print, "printed at the end")
os.write(1, b"written by a library\\n")
subprocess.run([sys.executable, "-c", "print('printed by a child')"])

class Net(torch.nn.Linear):
    def forward(self, x):
        print("printed by forward")
        return super().forward(x)

def make():
    print("printed by the maker", file=sys.__stdout__, flush=True)
    return Net(4, 2), torch.zeros(3, 4)
"""


def run(*words, **streams):
    """Run the program with other streams and return its exit code and stderr."""
    options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True, **streams}
    done = subprocess.run([*PROGRAM, *words], check=False, **options)
    return done.returncode, done.stderr


def test_what_a_net_prints_goes_to_stderr(shell, write):
    write("net.py", TALKATIVE)
    words = [*PROGRAM, "inspect", "net.py:make", "--json"]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    assert json.loads(done.stdout)["name"] == "net.py:make"
    for source in ("the import", "the end", "a library", "a child", "forward", "the maker"):
        assert f"by {source}" in done.stderr or f"at {source}" in done.stderr


def test_the_output_of_a_measured_command_is_its_own():
    words = [*PROGRAM, "measure", "--meter", "modelled", "--", "echo", "from the command"]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    assert done.stdout.startswith("from the command\n") and "on average" in done.stdout


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_stdout_that_cannot_be_written_is_one_line(words):
    with Path("/dev/full").open("w") as full:
        code, text = run(*words, stdout=full)
    assert code == 1 and text.endswith("(No space left on device): redirect it elsewhere\n")
    assert text.startswith("joulecast: the result cannot") and len(text.splitlines()) == 1
    code, text = run(*words, stdout=None, preexec_fn=lambda: os.close(1))
    closed = "joulecast: stdout is closed: redirect it to a file, or to /dev/null\n"
    assert (code, text) == (1, closed)
    # A reader that left is no error.
    read, write = os.pipe()
    os.close(read)
    assert run(*words, stdout=write) == (141, "")
    os.close(write)


def test_no_file_takes_the_place_of_closed_streams(tmp_path):
    code = (
        "import os, sys\n"
        "from joulecast.cli.streams import take_streams\n"
        "take_streams()\n"
        "with open('data', 'w') as data:\n"
        "    print('hello', file=sys.stderr)\n"
        "    os.write(1, b'hello')\n"
        "    os.write(2, b'hello')\n"
        "    data.write('data')"
    )
    words = [sys.executable, "-c", code]
    subprocess.run(words, check=True, cwd=tmp_path, preexec_fn=lambda: os.closerange(0, 3))
    assert (tmp_path / "data").read_text() == "data"


def test_any_encoding_can_show_a_result():
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    words = [*PROGRAM, "profiles", "list"]
    done = subprocess.run(words, check=True, capture_output=True, text=True, env=environment)
    assert done.stdout.startswith("key") and done.stdout.isascii()


def test_messages_and_logs_are_safe_to_show(shell, monkeypatch):
    hostile = "\x1b]52;c;Z2V0\x07 in postgres://ann:s3cret@db/lab?password=s3cret"

    def log() -> tuple[()]:
        logging.getLogger("joulecast.test").debug("opening %s", hostile)
        write_message(hostile)
        return ()

    monkeypatch.setattr("joulecast.meters.detect_meters", log)
    text = shell("-v", "detect").stderr
    assert len(text.splitlines()) == 2
    assert "\x1b" not in text and "\x07" not in text and "s3cret" not in text
    assert text.count(r"\x1b]52;c;Z2V0\x07 in postgres://ann:***@db/lab?password=***") == 2


def test_warnings_and_tracebacks_are_safe_to_show():
    code = (
        "import logging, warnings\n"
        "import joulecast.meters as meters\n"
        "from joulecast.cli.main import main\n"
        "hostile = '\\x1b[2J redis://:s3cret@db'\n"
        "def fail():\n"
        "    logging.getLogger('library').warning(hostile)\n"
        "    warnings.warn(hostile)\n"
        "    raise ValueError(hostile)\n"
        "meters.detect_meters = fail\n"
        "main()"
    )
    words = [sys.executable, "-c", code, "detect"]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    shown = r"\x1b[2J redis://:***@db"
    assert lines[0] == shown and lines[1].endswith(f"UserWarning: {shown}")
    assert lines[-1] == f"ValueError: {shown}"


def test_the_cause_of_an_error_is_logged(shell, write):
    write("net.json", "{")
    assert "JSONDecodeError" in shell("-v", "inspect", "net.json", code=1).stderr
    assert "JSONDecodeError" not in shell("inspect", "net.json", code=1).stderr


HOSTILE = "\x1b[2J\x1b]52;c;Z2V0\x07\x9b31m[bold]\u202e"
SHOWN = r"\x1b[2J\x1b]52;c;Z2V0\x07\x9b31m[bold]\u202e"


class Terminal(io.StringIO):
    """A text stream that says it is a terminal."""

    def isatty(self):
        return True


def assert_harmless(text):
    assert text.replace("\n", "").isprintable()


def test_sentences_and_cells_are_escaped():
    stream = io.StringIO()
    console = make_console(stream)
    console.print(f"\nNet {HOSTILE}\nA step takes 0 J.\n", style="bold")
    table = make_table(("name", ">value"), [(f"{HOSTILE}\n", "1")], HOSTILE)
    print_report(Report("", (table,)), console)
    text = stream.getvalue()
    assert_harmless(text)
    assert f"\nNet {SHOWN}\\nA step takes 0 J.\n" in text and text.count(SHOWN) == 3


def test_passwords_are_not_printed():
    stream = io.StringIO()
    make_console(stream).print("stored in postgres://ann:s3cret@db/lab")
    assert stream.getvalue() == "stored in postgres://ann:***@db/lab\n"


def test_progress_is_shown_and_escaped(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with show_bar() as update:
        update(0.5, "[/]", "[/] \x1b]52;c;Z2V0\x07")
    assert r"[/] \x1b]52;c;Z2V0\x07" in terminal.getvalue()
    assert "\x1b]52" not in terminal.getvalue()
    # An operation of unknown duration says what it does.
    with show_activity({}, "choosing channels"):
        assert "choosing channels" in terminal.getvalue()


def test_names_in_a_network_file_are_escaped(shell):
    network = make_family("lenet5:4,8,16,16")
    layers = tuple(replace(layer, name=f"{layer.name}{HOSTILE}") for layer in network.layers)
    write_network(replace(network, name=f"{HOSTILE}\r\x7f", layers=layers), "net.json")
    for words in (["inspect", "net.json"], ["inspect", "net.json", "--json"]):
        text = shell(*words).stdout
        assert_harmless(text)
        assert r"x1b" in text or r"u001b" in text


def test_names_in_a_profile_are_escaped(shell, profile_file):
    profile = read_profile(profile_file)
    device = replace(profile.device, name=f"lab-{HOSTILE}", processor=HOSTILE)
    observations = tuple(replace(one, device=device) for one in profile.observations)
    write_profile(replace(profile, device=device, observations=observations), "profile.json")
    imported = shell("profiles", "import", "profile.json")
    for result in (
        imported,
        shell("profiles", "list"),
        shell("profiles", "show", "lab"),
        shell("estimate", "lenet5:4,8,16,16", "--batch", "8", "--device", "lab"),
        shell("profiles", "remove", HOSTILE, code=1),
        shell("profiles", HOSTILE, code=2),
    ):
        assert_harmless(result.stdout)
        assert_harmless(result.stderr)
        assert r"\x1b" in result.output


@pytest.mark.parametrize("columns", ["", "wide", "-1", "80"])
def test_odd_widths_are_ignored(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    assert make_console(io.StringIO()).width == (80 if columns == "80" else 100)
