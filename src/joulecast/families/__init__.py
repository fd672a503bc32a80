"""Make networks from the name of a family and its widths, such as ``cnn5:16,32,64,128``.

The AMPERE paper names its families but not their exact shapes; those here are ours. A row of
``FAMILIES`` has the parameters of a family with their default values (the original network, whose
widths are the upper bounds of random members), and the default input and batch size.
``architectures.py`` has the layers of each family. No framework is needed.
"""

from joulecast.families.family_table import FAMILIES, Family
from joulecast.families.members import (
    WIDEST,
    build_family,
    draw_family,
    is_family,
    make_family,
    name_member,
)

__all__ = [
    "FAMILIES",
    "WIDEST",
    "Family",
    "build_family",
    "draw_family",
    "is_family",
    "make_family",
    "name_member",
]
