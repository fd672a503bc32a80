"""Every command and call that a page or an example prints runs as printed, in their order.

Each page has an empty store, and a folder with a link to the examples, ``net.onnx``, the ``toml``
and ``csv`` it shows as ``jobs.toml`` and ``runs.csv``, and its blocks with a title. What
needs a GPU must stop because the GPU is missing. Other blocks of Python run after the commands, in
one namespace. Only what takes minutes is shortened.
"""

import os
import re
import shlex
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

import joulecast
from joulecast.cli.main import cli
from joulecast.system.errors import MissingError
from onnx_models import make_conv_net, save

ROOT = Path(__file__).parents[2]
PATTERNS = (
    "README.md",
    "docs/commands.md",
    "docs/devices.md",
    "docs/tutorial.md",
    "docs/how-to/*.md",
    "examples/*",
)
SHORTER = {
    "--seconds 120": "--seconds 4",
    "--seconds 30": "--seconds 4",
    "prune resnet18": "prune resnet18:64,1,1,1,1 --strategy uniform",
    "prune cnn5": "prune cnn5 --strategy uniform",
    'budget="60%", confidence=0.8,': 'budget="60%", confidence=0.8, strategy="uniform",',
}
# Python that needs devices; tests/api/test_fleet.py has some.
ONLY_COMPILED = ("docs/how-to/fleet.md",)
# Too long for a test even if shortened; tests/campaign measures atlases.
ONLY_PARSED = (
    "profile --atlas --on cpu --seconds 600",
    # It estimates for every device; tests/cli/test_devices.py compares two.
    "compare cnn5 --devices all",
    # Thousands of observations; tests/cli/test_profile.py imports some.
    "profiles import h200.json",
    # They need an instrument; tests/features/data/test_attach.py records and attaches.
    "profile lenet5 --on cpu --meter later",
    "data attach trace.csv",
    "estimate lenet5:4,8,16,32 --device NAME",
    # It needs runs of two devices; features/data/test_tables.py imports with a source.
    "data import runs.csv --device new-gpu --from old-gpu",
    # They need a second machine; tests/cli/test_agent.py starts agents.
    "agent --on cuda:0 --listen 0.0.0.0:8377",
    "profile lenet5 --on http://board:8377",
    # Thousands of observations; tests/reports reports fewer.
    "report nvidia-h200 --out h200.html",
    # It runs until it is interrupted; tests/web starts it.
    "serve",
    "serve --host 0.0.0.0 --token-file token",
    # They need devices; tests/journeys/test_fleet.py has some.
    "fleet up fleet.toml",
    "fleet profile lenet5 --devices all",
    "fleet status",
    "fleet estimate lenet5 --steps 5000 --deadline 1h",
)
# Names in calls that stand for the reader's own things.
OWN_NAMES = ("...", "folder", "score", "FILE")


def list_commands(path: Path) -> list[str]:
    """Return the indented lines that call the program, with continued lines joined."""
    text = re.sub(r"\\+\n\s*", "", path.read_text())
    return re.findall(r"^(?:    |# .*: )(?:\$ )?joulecast (.+?)(?:\s+#.*)?$", text, re.MULTILINE)


def list_blocks(path: Path) -> list[tuple[str, str]]:
    """Return title and code of each block of Python; most have no title."""
    found = re.findall(
        r'^```python(?: title="([^"]+)")?\n(.*?)^```$', path.read_text(), re.M | re.S
    )
    return [(title, code) for title, code in found]


COMMANDS = {
    str(path.relative_to(ROOT)): list_commands(path)
    for pattern in PATTERNS
    for path in sorted(ROOT.glob(pattern))
    if path.is_file() and (list_commands(path) or list_blocks(path))
}


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("JOULECAST_STORE", str(tmp_path / "store.sqlite"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    save(make_conv_net(), tmp_path / "net.onnx")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_pages_print_commands() -> None:
    how_tos = {f"docs/how-to/{name}.md" for name in ("atlas", "compare", "evaluate", "plan")}
    assert how_tos | {"README.md", "docs/commands.md", "examples/own_net.py"} <= set(COMMANDS)
    blocks = {page for page in COMMANDS if list_blocks(ROOT / page)}
    assert {"README.md", "docs/commands.md", "docs/tutorial.md", "docs/how-to/prune.md"} <= blocks
    assert len(COMMANDS["README.md"]) >= 6 and len(COMMANDS["docs/commands.md"]) >= 15


@pytest.mark.parametrize("page", sorted(COMMANDS))
def test_commands_run_as_printed(page: str, folder: Path, monkeypatch) -> None:
    for text in re.findall(r"```toml\n(.*?)```", (ROOT / page).read_text(), re.DOTALL):
        (folder / "jobs.toml").write_text(text)
    for title, text in re.findall(
        r'```toml title="([^"]+)"\n(.*?)```', (ROOT / page).read_text(), re.DOTALL
    ):
        (folder / title).write_text(text)
    for text in re.findall(r"```csv\n(.*?)```", (ROOT / page).read_text(), re.DOTALL):
        (folder / "runs.csv").write_text(text)
    for title, code in list_blocks(ROOT / page):
        if title:
            (folder / title).write_text(code)
    for line in COMMANDS[page]:
        if line in ONLY_PARSED:
            parse(line)
            continue
        line = shorten(line)
        done = CliRunner().invoke(cli, shlex.split(line), prog_name="joulecast")
        if "cuda:0" in line:
            assert done.exit_code == 1 and "cuda:0 was not found" in done.stderr, (
                line,
                done.output,
            )
        else:
            assert done.exit_code == 0, (line, done.output)
    run_python(page)
    monkeypatch.syspath_prepend(folder)
    run_blocks(page)
    keep_pictures(page, folder)


def keep_pictures(page: str, folder: Path) -> None:
    """Copy what the commands of a page drew, if a folder for pictures is set."""
    if target := os.environ.get("JOULECAST_SCREENSHOTS"):
        (ROOT / target).mkdir(parents=True, exist_ok=True)
        for picture in folder.glob("*.png"):
            shutil.copy(picture, ROOT / target / f"{Path(page).stem}-{picture.name}")


def shorten(text: str) -> str:
    for long, short in SHORTER.items():
        text = text.replace(long, short)
    return text


def run_blocks(page: str) -> None:
    """Run the blocks of Python that a page shows, one after another."""
    namespace: dict[str, object] = {"__name__": "page"}
    for title, text in list_blocks(ROOT / page):
        code = compile(shorten(text), page, "exec")
        if title or page in ONLY_COMPILED:
            continue
        if "cuda" in text:
            with pytest.raises(MissingError, match="cuda:0 was not found"):
                exec(code, namespace)
        else:
            exec(code, namespace)


def run_python(page: str) -> None:
    """Run the calls that a page shows within its text."""
    for code in re.findall(r"`(joulecast\.\w+\([^`]*\))`", (ROOT / page).read_text()):
        if any(own in code for own in OWN_NAMES):
            continue
        if "cuda" in code:
            with pytest.raises(MissingError, match="cuda:0 was not found"):
                eval(code, {"joulecast": joulecast})
        else:
            assert eval(code, {"joulecast": joulecast}) is not None


def parse(line: str) -> None:
    """Raise UsageError unless the program has the command and its options."""
    context = cli.make_context("joulecast", shlex.split(line))
    name, command, words = cli.resolve_command(context, [*context._protected_args, *context.args])
    assert command is not None
    command.make_context(name, words, parent=context)
