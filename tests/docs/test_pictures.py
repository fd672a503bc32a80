"""Pictures on the pages exist, and screenshots are made small enough for them."""

import random
import runpy
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[2]
PICTURES = runpy.run_path(str(ROOT / "docs/_site/pictures.py"))


def test_every_picture_is_shown_and_there() -> None:
    there = {path.name for path in (ROOT / "docs/images").glob("*")}
    assert there == PICTURES["list_pictures"]() and "tutorial-compare.png" in there


def test_pictures_of_the_pages_are_small() -> None:
    for path in (ROOT / "docs/images").glob("*.png"):
        assert path.stat().st_size < PICTURES["LARGEST_BYTES"]


def test_screenshots_are_cropped_and_shrunk(tmp_path: Path) -> None:
    rng = random.Random(1)
    noisy = Image.frombytes("RGB", (1400, 400), rng.randbytes(3 * 1400 * 400))
    tall = Image.new("RGB", (1400, 3000))
    tall.paste(noisy.crop((0, 0, 200, 400)))
    tall.save(tmp_path / "large.png")
    PICTURES["shrink"](tmp_path / "large.png", tmp_path / "small.png")
    with Image.open(tmp_path / "small.png") as small:
        assert small.size == PICTURES["LARGEST_SIZE"]
    assert (tmp_path / "small.png").stat().st_size < PICTURES["LARGEST_BYTES"]
