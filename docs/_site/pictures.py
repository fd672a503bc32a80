"""Copy screenshots that the tests made into docs/images, small enough for a repository.

    JOULECAST_SCREENSHOTS=build/screenshots pytest tests/web tests/docs
    python docs/_site/pictures.py build/screenshots

``make pictures`` does both.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from PIL import Image

DOCS = Path(__file__).parents[1]
LARGEST_BYTES = 150_000
# A page may be long; its top is enough.
LARGEST_SIZE = (1280, 1000)


def main() -> None:
    """Copy every picture that a page shows."""
    folder = Path(sys.argv[1])
    (DOCS / "images").mkdir(exist_ok=True)
    for name in sorted(list_pictures()):
        if not (folder / name).is_file():
            sys.exit(f"{folder / name} is missing: run the tests with JOULECAST_SCREENSHOTS first")
        shrink(folder / name, DOCS / "images" / name)


def list_pictures() -> set[str]:
    """Return the names of all pictures in docs/images that pages show."""
    texts = [path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md")]
    return {name for text in texts for name in re.findall(r"\]\([./]*images/([\w-]+\.png)\)", text)}


def shrink(source: Path, target: Path) -> None:
    """Crop a picture and reduce its colours until it is small."""
    with Image.open(source) as found:
        width, height = found.size
        picture = found.convert("RGB").crop(
            (0, 0, min(width, LARGEST_SIZE[0]), min(height, LARGEST_SIZE[1]))
        )
    for colours in (256, 128, 64, 32):
        picture.quantize(colours).save(target, optimize=True)
        if target.stat().st_size < LARGEST_BYTES:
            return
    sys.exit(f"{source} is too large: {target.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
