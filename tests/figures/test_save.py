"""Plots are saved as self-contained pages, SVG and PNG."""

import subprocess
import sys

import pytest

from figures.example_plots import ROWS, RUNS
from joulecast.errors import FileError
from joulecast.figures import (
    Caption,
    make_html,
    make_png,
    make_svg,
    plot_error_by_budget,
    plot_mape_bars,
    save_html,
    save_png,
    save_svg,
)


def test_files_contain_the_plot(tmp_path):
    plot = plot_mape_bars(ROWS)
    assert save_svg(plot, tmp_path / "a.svg").read_text() == make_svg(plot)
    assert save_png(plot, tmp_path / "a.png").read_bytes() == make_png(plot)
    assert make_png(plot).startswith(b"\x89PNG")
    assert "Mean error" in save_html(plot, tmp_path / "a.html").read_text()


def test_unwritable_path_raises_a_clear_error(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    for save in (save_svg, save_png, save_html):
        with pytest.raises(FileError, match="cannot write"):
            save(plot_error_by_budget(RUNS), tmp_path / "file" / "a")


def test_folders_are_created(tmp_path):
    assert save_svg(plot_error_by_budget(RUNS), tmp_path / "new" / "a.svg").exists()


def test_page_is_self_contained_and_has_the_library_once(tmp_path):
    plots = [plot_mape_bars(ROWS), plot_error_by_budget(RUNS, caption=Caption("</script><b>"))]
    page = save_html(plots, tmp_path / "all.html").read_text(encoding="utf-8")
    library = len(make_html(plots[0])) - len(make_html(plots[0], include_library=False))
    assert library < len(page) < 1.1 * library
    tags = [tag for tag in page.split("<") if tag.startswith(("script ", "link ", "img "))]
    assert not [tag for tag in tags if "src=" in tag.split(">")[0] or "href=" in tag.split(">")[0]]
    assert 'id="plot-1"' in page
    assert 'id="plot-2"' in page
    assert "</script><b>" not in page


def test_import_loads_no_plotting_library():
    code = (
        "import sys, joulecast.figures\n"
        "loaded = {'plotly', 'matplotlib', 'numpy', 'torch'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
