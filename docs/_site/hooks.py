"""MkDocs hooks: pages made from the code, and links to files outside docs/.

A page links to other files of the repository as GitHub needs it. Here, Markdown files and examples
outside docs/ become pages too, and a link to anything else becomes plain text.
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(Path(__file__).parent))

import command_line_page  # noqa: E402
import python_page  # noqa: E402
import web_api_page  # noqa: E402

_GENERATED = {
    "reference/command-line.md": command_line_page.write_page,
    "reference/python.md": python_page.write_page,
    "reference/web-api.md": web_api_page.write_page,
}
# Files of the repository that become pages, and where.
_PAGES = {
    **{
        f"{name}.md": f"project/{name.lower()}.md"
        for name in ("ARCHITECTURE", "CHANGELOG", "CONTRIBUTING", "SECURITY")
    },
    "README.md": "project/readme.md",
}
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add pages made from the code, and those of files outside docs/."""
    for uri, write_page in _GENERATED.items():
        files.append(File.generated(config, uri, content=write_page()))
    for source, uri in _list_pages().items():
        path = ROOT / source
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".py":
            text = f"# {path.name}\n\n```python\n{text}```\n"
        files.append(File.generated(config, uri, content=text))
    for path in sorted(ROOT.glob("benchmarks/*/results/*.svg")):
        files.append(File.generated(config, str(path.relative_to(ROOT)), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links at pages of the site."""
    sources = {uri: source for source, uri in _list_pages().items()}
    uri = page.file.src_uri
    source = sources.get(uri, f"docs/{uri}")

    def replace(match: re.Match[str]) -> str:
        mark, text, target, anchor = match.groups()
        if "://" in target or target.startswith("mailto:") or uri in _GENERATED:
            return match[0]
        found = _find_page(posixpath.normpath(posixpath.join(posixpath.dirname(source), target)))
        if found is None or files.get_file_from_path(found) is None:
            return text
        relative = posixpath.relpath(found, posixpath.dirname(uri) or ".")
        return f"{mark}[{text}]({relative}{anchor or ''})"

    # Code is left as it is.
    parts = re.split(r"(^```.*?^```$|`[^`\n]+`(?!\]))", markdown, flags=re.MULTILINE | re.DOTALL)
    if uri.startswith("examples/"):
        return markdown
    return "".join(part if at % 2 else _LINK.sub(replace, part) for at, part in enumerate(parts))


def _list_pages() -> dict[str, str]:
    """Return the path in the repository and in the site of each file outside docs/."""
    found = dict(_PAGES)
    for path in sorted(ROOT.glob("benchmarks/**/*.md")):
        relative = path.relative_to(ROOT).as_posix()
        found[relative] = relative
    for path in sorted(ROOT.glob("examples/*.py")):
        found[path.relative_to(ROOT).as_posix()] = f"examples/{path.stem}.md"
    return found


def _find_page(path: str) -> str | None:
    """Return where a file of the repository is in the site, or None."""
    pages = _list_pages()
    for one in (path, f"{path}/README.md"):
        if one in pages:
            return pages[one]
        if one.startswith("docs/") and (ROOT / one).is_file():
            return one.removeprefix("docs/")
    return path if path.endswith(".svg") else None
