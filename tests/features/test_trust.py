"""Folders are trusted by full path; until then their settings and plans run nothing."""

import os

import click
import pytest

import joulecast
from joulecast.cli.commands import DeclaredOption
from joulecast.cli.main import cli
from joulecast.cli.settings import find_harmful, find_user_file, list_declared
from joulecast.features.trust import check_trusted, find_trust_file, trust_folder
from joulecast.system.errors import FileError, InputError


@pytest.fixture(autouse=True)
def data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("JOULECAST_STORE", raising=False)


def is_trusted(*places):
    try:
        check_trusted(*places)
    except InputError:
        return False
    return True


@pytest.fixture
def lab(tmp_path):
    folder = tmp_path / "lab"
    (folder / "inner").mkdir(parents=True)
    return folder


def test_a_folder_and_those_below_are_trusted(tmp_path, lab):
    assert not is_trusted(lab / "jobs.toml") and trust_folder(lab) == lab
    assert is_trusted(lab / "jobs.toml") and is_trusted(lab / "inner" / "jobs.toml")
    assert is_trusted(lab, lab / "jobs.toml", lab / "inner")
    assert not is_trusted(lab / "jobs.toml", tmp_path)
    for other in (tmp_path / "jobs.toml", tmp_path / "laboratory/jobs.toml", lab / "../jobs.toml"):
        assert not is_trusted(other)


def test_trust_follows_links_and_the_current_folder(tmp_path, lab, monkeypatch):
    (tmp_path / "link").symlink_to(lab)
    (lab / "away.toml").symlink_to(tmp_path / "jobs.toml")
    monkeypatch.chdir(lab)
    assert trust_folder(".") == trust_folder(tmp_path / "link") == lab
    assert is_trusted("jobs.toml") and is_trusted(tmp_path / "link" / "jobs.toml")
    assert not is_trusted("away.toml")
    assert find_trust_file().read_text() == f"{lab}\n"


def test_lines_can_be_removed_and_edited(tmp_path, lab):
    trust_folder(lab)
    other = tmp_path / "other"
    other.mkdir()
    find_trust_file().write_text(f"# mine\n\n.\n{other}")
    assert is_trusted(other / "x") and not is_trusted(lab / "x") and not is_trusted("x")
    trust_folder(lab)
    assert is_trusted(other / "x") and is_trusted(lab / "x")


def test_odd_names_trust_nothing_else(tmp_path):
    for name in ("a b", "ü", os.fsdecode(b"\xff"), "x\u2028y", "x\x85y"):
        folder = tmp_path / name
        folder.mkdir()
        trust_folder(folder)
        assert is_trusted(folder / "f")
    (tmp_path / "x").mkdir()
    assert not is_trusted(tmp_path / "x" / "f")


def test_folders_that_cannot_be_trusted_are_refused(tmp_path, lab):
    with pytest.raises(InputError, match="there is no folder"):
        trust_folder(tmp_path / "nowhere")
    (tmp_path / "a\nb").mkdir()
    with pytest.raises(InputError, match="line break"):
        trust_folder(tmp_path / "a\nb")
    lab.chmod(0o777)
    with pytest.raises(InputError, match="everybody can write"):
        trust_folder(lab)
    assert not is_trusted(lab / "x")


def test_a_list_that_cannot_be_written_is_reported(tmp_path, lab, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    with pytest.raises(FileError, match="cannot write"):
        trust_folder(lab)
    assert not is_trusted(lab / "x")


def test_advice_is_a_command(tmp_path):
    (tmp_path / "my lab").mkdir()
    for place in (tmp_path / "my lab" / "jobs.toml", tmp_path / "my lab"):
        with pytest.raises(InputError, match=f"joulecast --trust '{tmp_path}/my lab'`"):
            check_trusted(place)


EVIL = "from pathlib import Path\nPath('was-run').touch()\n"
PLAN = """
[[job]]
name = "first"
net = "{net}"
steps = 10
input = "4"
[[device]]
name = "laptop"
power_w = 35
flops_per_s = 3e11
"""
METER = "command:sh -c 'touch was-run; echo 5 W'"
# Too short for this meter, so its exit code is 1.
MEASURED = ("measure", "--json", "--", "true")
HARMFUL = {
    "meter": [METER, f"rapl+{METER}", "file:a.csv+command:sh", "plugin", "plugin:x", "nvml:0;x"],
    "on": ["plugin", "plugin:x", ["cpu", "plugin"], "cpu,plugin", "http://a:1", "ssh://a"],
    "runtime": ["plugin", "mnn,plugin"],
    "store": [
        *(f"{folder}/x.sqlite" for folder in ("/tmp", "..", "~", "file:/tmp", "away")),
        "postgresql://db/lab",
    ],
    "behind_proxy": [True],
    **{name: ["0.0.0.0"] for name in ("listen", "host")},
    **{name: ["evil.py:make"] for name in ("train", "loader")},
    **{name: ["x"] for name in ("token_file", "results", "add", "out", "plot", "save", "svg")},
    "storage": ["sqlite:///x.db"],
}
_CONTEXT = click.Context(cli)
DECLARED = list_declared(cli.get_command(_CONTEXT, name) for name in cli.list_commands(_CONTEXT))
ALLOWED = {
    "meter": [
        *("auto", "rapl", "nvml", "nvml:1", "nvml+rapl", "hwmon", "hwmon:VDD_IN", "battery"),
        *("modelled:8W", "file:power.csv", "later", "later:battery"),
        *("monsoon", "monsoon:60001", "amd", "amd:1", "apple"),
    ],
    "on": ["cpu", "cuda:1", "mnn:cpu", "simulated:7", ["cpu", "cuda:0"], "cpu,cuda"],
    "runtime": ["torch", "mnn", "simulated"],
    "store": ["lab.sqlite", "inner/lab.sqlite", ":memory:"],
}


# Texts that were looked at: names, sizes and files to read. None of them runs code, writes a file
# or connects to a server.
REVIEWED = {
    "accumulate", "batch", "battery", "budget", "charge", "covers", "device", "device_file",
    "device_name", "devices", "estimator", "estimators", "from_", "gpus", "grid", "input", "keep",
    "licence", "now", "parallel", "patience", "price", "processor", "profile", "run", "sampler",
    "seen", "source", "study", "tdp", "threads", "vary", "window",
}  # fmt: skip


def test_every_text_without_harm_was_looked_at():
    """A new argument that takes any text declares its harm, or is added here after a look at it."""
    commands = [cli.get_command(_CONTEXT, name) for name in cli.list_commands(_CONTEXT)]
    found = set()
    while commands:
        command = commands.pop()
        commands += command.commands.values() if isinstance(command, click.Group) else ()
        for param in command.params:
            if isinstance(param, DeclaredOption) and not param.is_flag and not param.about.harm:
                kind = param.type.declaration.type
                if kind not in (int, float) and not param.about.choices:
                    found.add(param.name)
    assert found == REVIEWED


@pytest.mark.parametrize("name", HARMFUL)
def test_settings_that_could_do_harm_are_found_and_others_allowed(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "away").symlink_to("/tmp")
    for value in HARMFUL[name]:
        found = find_harmful({"batch": 4, name: value}, DECLARED)
        assert found is not None and found[0] == name, value
    for value in ALLOWED.get(name, ()):
        assert find_harmful({"batch": 4, name: value}, DECLARED) is None, value


@pytest.mark.parametrize(
    "text", [f'meter = "{METER}"', f'[measure]\nmeter = "{METER}"', '[search]\ntrain = "evil.py:x"']
)
@pytest.mark.parametrize("words", [["measure", "lenet5"], ["measure", "--", "true"], ["detect"]])
def test_settings_of_a_foreign_folder_run_nothing(shell, write, text, words):
    write("evil.py", EVIL)
    write("joulecast.toml", text)
    message = shell.fails(*words)
    assert "joulecast.toml: " in message and "on the command line" in message
    assert f"joulecast --trust {shell.folder}" in message
    assert not (shell.folder / "was-run").exists()


def test_settings_of_a_trusted_folder_apply(shell, write):
    write("joulecast.toml", f'meter = "{METER}"')
    result = shell("--trust", ".", *MEASURED, code=1)
    assert f"Trusted from now on: {shell.folder}" in result.stderr
    assert (shell.folder / "was-run").exists() and METER in shell(*MEASURED, code=1).stdout


def test_settings_of_the_user_apply(shell):
    find_user_file().parent.mkdir(parents=True)
    find_user_file().write_text(f'meter = "{METER}"')
    assert METER in shell(*MEASURED, code=1).stdout


def test_trusting_needs_no_command(shell):
    assert "Trusted" in shell("--trust", ".").stderr
    assert "there is no folder" in shell.fails("--trust", "nowhere")
    assert "Missing command" in shell.fails("-v", code=2)


def test_a_plan_of_a_foreign_folder_runs_nothing(shell, write):
    write("evil.py", EVIL + "import torch\ndef make(): return torch.nn.Linear(4, 2)")
    for net in ("evil.py:make", "evil:make", f"{shell.folder}/evil.py:make"):
        write("jobs.toml", PLAN.format(net=net))
        message = shell.fails("plan", "jobs.toml")
        assert "[[job]] first" in message and f"joulecast --trust {shell.folder}" in message
        with pytest.raises(FileError, match="runs code"):
            joulecast.plan("jobs.toml")
        assert not (shell.folder / "was-run").exists()
    assert joulecast.plan("jobs.toml", trust=True).jobs
    assert (shell.folder / "was-run").exists()
    assert shell("--trust", ".", "plan", "jobs.toml").stdout


def test_relative_names_in_trusted_files_mean_trusted_code(shell, write, tmp_path):
    """A trusted file must not run code of another folder that happens to be the current one."""
    lab = tmp_path / "lab"
    lab.mkdir()
    (lab / "jobs.toml").write_text(PLAN.format(net="evil.py:make"))
    (lab / "modules.toml").write_text(PLAN.format(net="evil:make"))
    (lab / "joulecast.toml").write_text('meter = "command:./evil.sh"')
    shell("--trust", str(lab))
    write("evil.py", EVIL)
    for name in ("jobs.toml", "modules.toml"):
        assert f"joulecast --trust {shell.folder}" in shell.fails("plan", str(lab / name))
    (shell.folder / "joulecast.toml").symlink_to(lab / "joulecast.toml")
    assert f"joulecast --trust {shell.folder}" in shell.fails("detect")
    assert not (shell.folder / "was-run").exists()


def test_plans_without_code_need_no_trust(shell, write):
    shell("inspect", "lenet5", "--out", "net.json")
    for net in ("lenet5:4,8,16,16", "net.json"):
        write("jobs.toml", PLAN.format(net=net).replace('input = "4"', ""))
        shell("plan", "jobs.toml")
