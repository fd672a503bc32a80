"""The program: help without imports, errors in one line, and the order of settings."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

from joulecast.cli.main import COMMANDS, cli
from joulecast.cli.settings import find_user_file, read_settings
from joulecast.families import make_family
from joulecast.store.files import write_network

HEAVY = ("numpy", "torch", "rich", "sqlalchemy", "sklearn", "scipy", "alembic")


def imported_by(code: str) -> set[str]:
    """Return the heavy modules that a piece of Python imports."""
    check = f"import sys\n{code}\nprint(*[m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_help_imports_nothing_heavy():
    code = (
        "from joulecast.cli.main import cli\n"
        "try: cli.main(['--help'], prog_name='joulecast')\n"
        "except SystemExit: pass"
    )
    assert imported_by(code) == set()


def test_import_joulecast_imports_nothing_heavy():
    assert imported_by("import joulecast") == set()


@pytest.mark.parametrize("net", ["lenet5", "net.json"])
def test_estimate_with_a_shipped_profile_needs_no_database(monkeypatch, tmp_path, net):
    monkeypatch.setenv("JOULECAST_STORE", str(tmp_path / "none.sqlite"))
    monkeypatch.chdir(tmp_path)
    write_network(make_family("lenet5"), "net.json")
    code = (
        "from joulecast.cli.main import cli\n"
        f"words = ['estimate', '{net}', '--device', 'nvidia-h200', '--json']\n"
        "try: cli.main(words, prog_name='joulecast')\n"
        "except SystemExit as end: assert not end.code"
    )
    assert imported_by(code) == {"numpy"}


def test_help_lists_every_command_under_its_heading(shell):
    text = shell("--help").stdout
    places = [text.index(f"{title}:") for title in COMMANDS]
    assert places == sorted(places)
    for title, rows in COMMANDS.items():
        for name in rows:
            assert text.index(f"\n  {name} ") > text.index(f"{title}:")


@pytest.mark.parametrize("name", [name for rows in COMMANDS.values() for name in rows])
def test_every_command_has_help_and_prints_json(shell, name):
    text = shell(name, "--help").stdout
    assert text.startswith(f"Usage: joulecast {name}")
    command = cli.get_command(click.Context(cli), name)
    inner = command.commands.values() if isinstance(command, click.Group) else [command]
    for one in inner:
        assert any("--json" in param.opts for param in one.params), one.name


def test_version(shell):
    assert shell("--version").stdout.startswith("joulecast, version ")


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["nonsense"], "nonsense"),
        (["detect", "--nonsense"], "--nonsense"),
        (["inspect"], "NET"),
        (["inspect", "cnn5", "--batch", "many"], "--batch"),
        (["inspect", "cnn5", "--input", "3x"], "3x96x96"),
        (["inspect", "cnn5", "--optimizer", "adagrad"], "sgd"),
        (["measure"], "NET"),
        (["measure", "cnn5", "--", "true"], "NET"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(shell, words, part):
    assert part in shell.fails(*words, code=2)


def test_a_bug_shows_its_traceback(shell, monkeypatch):
    monkeypatch.setattr("joulecast.meters.detect_meters", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        shell("detect")


# -- settings -----------------------------------------------------------------------------------


def batch_of(shell, *words):
    return shell.json("inspect", "lenet5", *words)["setup"]["batch"]


def test_arguments_override_environment_overrides_files(shell, write, monkeypatch):
    user = find_user_file()
    user.parent.mkdir(parents=True)
    user.write_text("batch = 2")
    assert batch_of(shell) == 2
    write("joulecast.toml", "batch = 3\n[measure]\nbatch = 9")
    assert batch_of(shell) == 3
    write("joulecast.toml", "batch = 3\n[inspect]\nbatch = 4")
    assert batch_of(shell) == 4
    monkeypatch.setenv("JOULECAST_BATCH", "5")
    assert batch_of(shell) == 5
    assert batch_of(shell, "--batch", "6") == 6


def test_settings_reach_subcommands(shell, write, monkeypatch):
    monkeypatch.delenv("JOULECAST_STORE")
    write("joulecast.toml", 'store = "nowhere/at/all.sqlite"\njson = true')
    assert shell("profiles", "list").stdout.lstrip().startswith("{")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("batch = ", "TOML"),
        ("batch = " + "[" * 600, "TOML"),
        ('device = "\\u001b[2J"', "device has control characters"),
        ('keep = ["a", "\\u202e"]', "keep has control characters"),
        ('[prune]\nkeep = ["\\u0007"]', "prune has control characters"),
        ("[nonsense]\nbatch = 1", "[nonsense]"),
        ("bacth = 1", "'bacth'"),
        ("[inspect]\ngrid = 1", "[inspect] has no option 'grid'"),
        ("[profiles]\nbatch = 1", "[profiles] has no option 'batch'"),
    ],
)
def test_wrong_settings_are_reported(shell, write, text, part):
    write("joulecast.toml", text)
    message = shell.fails("detect")
    assert "joulecast.toml" in message and part in message


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("threads = inf", "Invalid value for '--threads': 'inf'"),
        ("batch = []", "Invalid value for '--batch'"),
        ("batch = [1, 2]", "'1,2'"),
        ("batch = 1e999", "'--batch': 'inf'"),
        ("batch = 2030-01-01", "'2030-01-01'"),
        ("batch = [[1]]", "batch is [[1]]: give a text, a number or a list"),
        ("batch = [{a = 1}]", "batch is [{'a': 1}]: give a text, a number or a list"),
        ("batch = 99999999999999999999", "batch is 99999999999999999999: give at most"),
    ],
)
def test_settings_of_a_wrong_type_are_refused_like_options(shell, write, text, part):
    write("joulecast.toml", text)
    # Click refuses what it cannot convert as wrong usage.
    code = 1 if "give" in part else 2
    assert part in shell.fails("inspect", "cnn5", code=code)


def test_lists_are_options_given_several_times_or_one_with_commas(shell, write):
    write("joulecast.toml", '[search]\nvary = ["c1=8..64", "c2=8,16"]\n[compare]\nbatch = [1, 2]\n')
    context = click.Context(cli)
    settings = read_settings(["search", "compare"], lambda name: cli.get_command(context, name))
    assert settings["search"]["vary"] == ["c1=8..64", "c2=8,16"]
    assert settings["compare"]["batch"] == "1,2"


def test_every_option_can_be_set_in_the_users_file(shell):
    context = click.Context(cli)
    find_user_file().parent.mkdir(parents=True)
    for name in cli.list_commands(context):
        params = cli.get_command(context, name).params
        names = [p.name for p in params if isinstance(p, click.Option) and p.name != "help"]
        lines = [f"{option.replace('_', '-')} = 1" for option in names]
        find_user_file().write_text("\n".join([*lines, f"[{name}]", *lines]))
        assert read_settings([name], lambda name: cli.get_command(context, name)) == {
            name: dict.fromkeys(names, "1")
        }


def test_every_option_has_a_variable():
    context = click.Context(cli)
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        params = [p for p in command.params if isinstance(p, click.Option) and p.name != "help"]
        assert all(p.envvar == f"JOULECAST_{p.name.rstrip('_').upper()}" for p in params)
