"""Plots are saved as pages that work offline, SVG and PNG."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from plotly.offline import get_plotlyjs

from figures.example_plots import ROWS, RUNS
from joulecast.errors import FileError
from joulecast.figures import (
    Caption,
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


def test_pages_are_small_and_share_one_script_beside_them(tmp_path):
    plots = [plot_mape_bars(ROWS), plot_error_by_budget(RUNS, caption=Caption("</script><b>"))]
    page = save_html(plots, tmp_path / "all.html").read_text(encoding="utf-8")
    (script,) = tmp_path.glob("plotly-*.min.js")
    written = script.stat()
    save_html(plots[0], tmp_path / "one.html")
    assert script.stat() == written and len(list(tmp_path.iterdir())) == 3
    assert script.read_text(encoding="utf-8") == get_plotlyjs()
    assert len(page) < 100_000
    # Nothing else is loaded, so that the page needs no network connection.
    tags = re.findall(r"<(?:script|link|img)\b[^>]*", page)
    assert re.findall(r"(?:src|href)=\S+", " ".join(tags)) == [f'src="{script.name}"']
    assert page.count('"showSendToCloud": false') == len(plots)
    assert 'id="plot-1"' in page
    assert 'id="plot-2"' in page
    assert "</script><b>" not in page


def test_a_damaged_script_is_replaced(tmp_path):
    plot = plot_mape_bars(ROWS)
    save_html(plot, tmp_path / "a.html")
    (script,) = tmp_path.glob("plotly-*.min.js")
    script.write_text("half of it")
    save_html(plot, tmp_path / "a.html")
    assert script.read_text(encoding="utf-8") == get_plotlyjs()


def test_import_loads_no_plotting_library():
    code = (
        "import sys, joulecast.figures\n"
        "loaded = {'plotly', 'matplotlib', 'numpy', 'torch'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_settings_of_the_current_folder_do_not_change_a_figure(tmp_path):
    """matplotlib reads ./matplotlibrc when it is imported; LaTeX would be a program to run."""
    (tmp_path / "matplotlibrc").write_text("text.usetex: True\nlines.linewidth: 9")
    code = (
        "from figures.example_plots import ROWS\n"
        "from joulecast.figures import make_svg, plot_mape_bars\n"
        "print(make_svg(plot_mape_bars(ROWS)), end='')"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == make_svg(plot_mape_bars(ROWS))
