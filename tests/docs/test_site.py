"""The site is built without a warning, is complete, and works without a network."""

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

import joulecast
from joulecast.cli.main import cli
from joulecast.web.app import create_app
from joulecast.web.dashboard import WebSettings

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the built site; a broken link or anchor fails the build."""
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


def read_text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def test_every_page_is_built_and_in_the_navigation(site: Path) -> None:
    navigation = set(re.findall(r" (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M))
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert pages <= navigation
    for page in navigation:
        name = "index" if page == "README.md" else page.removesuffix(".md")
        assert (site / f"{name}.html").is_file(), page


def test_nothing_is_loaded_from_other_servers(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 60
    for page in pages:
        found = re.findall(
            r"<(?:script|img|iframe|source)\b[^>]*\bsrc=[\"']?(\S+)", read_text(page)
        )
        found += re.findall(r"<link\b[^>]*\bhref=[\"']?(\S+)", read_text(page))
        assert found and not [one for one in found if "//" in one], page


def list_paths(command: click.Command, context: click.Context) -> list[str]:
    found = [context.command_path]
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            found += list_paths(inner, click.Context(inner, context, info_name=name))
    return found


def test_reference_has_every_command_name_and_path(site: Path) -> None:
    options = read_text(site / "reference/command-line.html")
    for path in list_paths(cli, click.Context(cli, info_name="joulecast"))[1:]:
        assert f'id="{path.replace(" ", "-")}"' in options, path
    assert "Probability of the interval." in options and "&lt;code&gt;" not in options
    names = read_text(site / "reference/python.html")
    for name in set(joulecast.__all__) - {"__version__"}:
        assert re.search(rf'<h2 id="joulecast\.[\w.]*\b{name}"', names), name
    requests = read_text(site / "reference/web-api.html")
    for path in create_app(WebSettings()).openapi()["paths"]:
        assert path in requests, path


def test_every_command_has_a_how_to_page() -> None:
    pages = {path: path.read_text() for path in (ROOT / "docs").rglob("*.md")}
    how_to = "".join(text for path, text in pages.items() if path.parent.name == "how-to")
    how_to += pages[ROOT / "docs/scores.md"] + pages[ROOT / "docs/devices.md"]
    for name in cli.list_commands(click.Context(cli)):
        assert f"    joulecast {name} " in how_to or f"    joulecast {name}\n" in how_to, name


def test_search_works_from_a_folder(site: Path, chromium) -> None:
    """Opened as a file, on a narrow screen: no error, no request elsewhere, and search answers."""
    problems: list[str] = []
    page = chromium.new_page(viewport={"width": 390, "height": 800})
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda one: problems.append(one.text) if one.type == "error" else None)
    page.on("request", lambda one: problems.append(one.url) if one.url[:4] == "http" else None)
    page.goto((site / "how-to/profile.html").as_uri(), wait_until="networkidle")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.locator("label[for=__search]").first.click()
    page.locator(".md-search__input").press_sequentially("prune")
    page.locator(".md-search-result__item").first.wait_for()
    page.close()
    assert not problems
