"""The program: help, options and settings, errors in one line, interruptions."""

import signal
import subprocess
import sys
import time

import click
import pytest

from joulecast.cli.commands import PLOT, DeclaredType
from joulecast.cli.main import COMMANDS, cli
from joulecast.cli.settings import find_user_file, read_settings
from joulecast.families import make_family
from joulecast.features.arguments import list_arguments
from joulecast.features.compare import compare
from joulecast.features.estimate import estimate_run
from joulecast.store.files import write_network

HEAVY = ("numpy", "torch", "rich", "sqlalchemy", "sklearn", "scipy")


ESTIMATE = ("--device", "nvidia-h200", "--json")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (None, set()),
        (["--help"], set()),
        (["estimate", "lenet5", *ESTIMATE], {"numpy"}),
        (["estimate", "net.json", *ESTIMATE], {"numpy"}),
    ],
)
def test_nothing_heavy_is_imported(shell, words, expected):
    """Also not the database, for an estimate with a shipped profile."""
    write_network(make_family("lenet5"), "net.json")
    run = (
        "from joulecast.cli.main import cli\n"
        f"try: cli.main({words!r}, prog_name='joulecast')\n"
        "except SystemExit as end: assert not end.code"
    )
    code = "import joulecast" if words is None else run
    check = f"import sys\n{code}\nprint(*[m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert set(done.stdout.splitlines()[-1].split()) == expected


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
    assert batch_of(shell) == 5 and batch_of(shell, "--batch", "6") == 6


def test_settings_reach_subcommands(shell, write, monkeypatch):
    monkeypatch.delenv("JOULECAST_STORE")
    write("joulecast.toml", 'store = "nowhere/at/all.sqlite"\njson = true')
    assert shell("profiles", "list").stdout.lstrip().startswith("{")


def test_settings_are_no_positional_arguments(shell, write):
    write("joulecast.toml", 'device = "nvidia-h200"')
    for words in (("profiles", "show"), ("data", "export")):
        assert "Missing argument 'DEVICE'" in shell.fails(*words, code=2)


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


KEPT = "interrupted: what was measured is stored; run it again to resume"
SEARCH = ("search", "lenet5", "--budget", "110%", "--device", "nvidia-h200")
SEARCH += ("--train", "train.py:score")
STUDY = ("features.search.study", "run_study")
PROGRAM = [sys.executable, "-c", "from joulecast.cli.main import main; main()"]
SLOW = """
import time
from pathlib import Path

def make_net():
    Path("started").touch()
    time.sleep(60)
"""


@pytest.mark.parametrize(
    ("module", "function", "words", "says"),
    [
        ("meters", "detect_meters", ("detect",), "interrupted"),
        ("features.estimate", "load_profile", ("estimate", "lenet5"), "interrupted"),
        ("features.measure", "measure_opened", ("estimate", "lenet5", "--probe"), "interrupted"),
        ("features.profile", "probe_layers", ("estimate", "lenet5", "--probe", "layers"), KEPT),
        ("features.profile", "run_profiling", ("profile", "lenet5"), KEPT),
        ("features.atlas", "profile_atlas", ("profile", "--atlas"), KEPT),
        ("features.evaluation", "measure_and_evaluate", ("evaluate", "lenet5"), KEPT),
        ("features.measure", "measure_opened", ("measure", "lenet5"), "interrupted"),
        ("features.prune", "load_profile", ("prune", "lenet5", "--budget", "50%"), "interrupted"),
        (*STUDY, SEARCH, "interrupted: its trials are lost; give --storage"),
        (*STUDY, (*SEARCH, "--storage", "sqlite:///s.db"), "interrupted: finished trials are in s"),
    ],
)
def test_an_interrupt_says_what_is_kept(shell, write, monkeypatch, module, function, words, says):
    def interrupt(*args, **extra):
        raise KeyboardInterrupt

    write("train.py", "def score(net, trial): return 1.0")
    monkeypatch.setattr(f"joulecast.{module}.{function}", interrupt)
    line = shell(*words, code=130).stderr.splitlines()[-1]
    assert line.startswith(f"joulecast: {says}")
    assert says != "interrupted" or line == "joulecast: interrupted"


def test_ctrl_c_in_an_estimate_claims_nothing_that_was_measured(shell, write):
    write("slow.py", SLOW)
    words = [*PROGRAM, "estimate", "slow.py:make_net", "--device", "nvidia-h200"]
    started = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    while not (shell.folder / "started").exists() and started.poll() is None:
        time.sleep(0.05)
    started.send_signal(signal.SIGINT)
    _, errors = started.communicate(timeout=60)
    assert started.returncode == 130
    assert errors.split("\n")[-2] == "joulecast: interrupted"


DECLARED = (*list_arguments(compare), *list_arguments(estimate_run), PLOT)
TYPES = {one.name: DeclaredType(one) for one in DECLARED}
TYPES["batches"] = next(DeclaredType(one) for one in DECLARED if one.name == "batch")


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        *(("level", text, 0.9) for text in ("90%", "0.9", " 90 % ")),
        *(("charge", text, value) for text, value in (("0%", 0), ("0", 0), ("100%", 1), ("1", 1))),
        ("rest_w", "2.5", 2.5),
        ("devices", "a, b,a", ("a", "b")),
        ("batches", "8,16", (8, 16)),
        ("input_shape", "3x96x96", (3, 96, 96)),
        ("plot", "front.SVG", "front.SVG"),
        *(("level", text, None) for text in ("-5", "many", "nan", "inf", "100%", "1.5")),
        *(("rest_w", text, None) for text in ("-5", "many", "nan", "inf")),
        ("devices", " , ", None),
        ("batches", "8,x", None),
        ("precision", "fp8", None),
        ("plot", "front.txt", None),
    ],
)
def test_texts_become_values_or_are_refused(name, text, value):
    if value is not None:
        assert TYPES[name].convert(text, None, None) == value
        return
    with pytest.raises(click.BadParameter):
        TYPES[name].convert(text, None, None)


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (("estimate", "lenet5"), "--out"),
        (("inspect", "lenet5"), "--out"),
        (("evaluate", "lenet5"), "--plot"),
    ],
)
def test_a_missing_folder_is_reported_before_any_work(shell, command, option):
    line = shell.fails(*command, option, "missing/file.html", code=2)
    assert "there is no folder missing: create it" in line
