"""Pictures in files: pages that need no network, plotly's script included, SVG and PNG."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path

from joulecast.errors import FileError
from joulecast.figures.picture import Picture, need_some
from joulecast.figures.style import FONT, INK
from joulecast.figures.with_matplotlib import make_png, make_svg
from joulecast.figures.with_plotly import to_plotly

_NO_BUTTONS = ("select2d", "lasso2d", "autoScale2d")
_PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>{title}</title>
<style>body {{ font-family: {font}; color: {ink}; max-width: 1200px; margin: 1rem auto; }}</style>
</head>
<body>
{body}
</body>
</html>
"""


def make_html(picture: Picture, *, library: bool = True, name: str = "picture") -> str:
    """A piece of a page that shows a picture.

    Args:
        picture: What to show.
        library: Whether plotly's script comes with it; once is enough for a page.
        name: The piece's id on its page.
    """
    words: str = to_plotly(picture).to_html(
        full_html=False,
        include_plotlyjs=library,
        div_id=name,
        config={"responsive": True, "displaylogo": False, "modeBarButtonsToRemove": _NO_BUTTONS},
    )
    return words


def save_html(pictures: Picture | Sequence[Picture], path: str | Path) -> Path:
    """Write a page with one or more pictures; everything it needs is in it."""
    found = [pictures] if isinstance(pictures, Picture) else list(pictures)
    need_some(found, "the pictures")
    pieces = [
        make_html(picture, library=place == 0, name=f"picture-{place + 1}")
        for place, picture in enumerate(found)
    ]
    title = html.escape(found[0].heading)
    page = _PAGE.format(title=title, font=FONT, ink=INK, body="\n".join(pieces))
    return _write(page, Path(path))


def save_svg(picture: Picture, path: str | Path) -> Path:
    """Write a picture as SVG.

    Raises:
        MissingError: matplotlib is not installed.
    """
    return _write(make_svg(picture), Path(path))


def save_png(picture: Picture, path: str | Path) -> Path:
    """Write a picture as PNG, for places that show no SVG.

    Raises:
        MissingError: matplotlib is not installed.
    """
    return _write(make_png(picture), Path(path))


def _write(content: str | bytes, path: Path) -> Path:
    data = content.encode("utf-8") if isinstance(content, str) else content
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        reason = error.strerror or str(error)
        raise FileError(f"{path} cannot be written ({reason}): give another path") from error
    return path
