"""Names from files are shown with their control characters escaped, in tables and sentences."""

from __future__ import annotations

import io
import sys
from dataclasses import replace

import pytest

from joulecast.cli.progress import show_activity, show_bar
from joulecast.families import make_family
from joulecast.store.files import read_profile, write_network, write_profile
from joulecast.views.report import Report, make_table
from joulecast.views.terminal import make_console, print_report

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
    assert f"\nNet {SHOWN}\\nA step takes 0 J.\n" in text
    assert text.count(SHOWN) == 3


def test_passwords_are_not_printed():
    stream = io.StringIO()
    make_console(stream).print("stored in postgres://ann:s3cret@db/lab")
    assert stream.getvalue() == "stored in postgres://ann:***@db/lab\n"


def test_a_progress_bar_is_escaped(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with show_bar() as update:
        update(0.5, "[/]", "[/] \x1b]52;c;Z2V0\x07")
    assert r"[/] \x1b]52;c;Z2V0\x07" in terminal.getvalue()
    assert "\x1b]52" not in terminal.getvalue()


def test_an_operation_of_unknown_duration_shows_what_it_does(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
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
