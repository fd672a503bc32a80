"""Make networks from the name of a family and its widths, such as ``cnn5:16,32,64,128``.

A row of ``FAMILIES`` has the parameters of a family with the values of the original network, the
values that random members have, and the default input and batch size.

- The AMPERE paper names its families but not their exact shapes; those here are ours
  (``architectures.py``). Widths of random members are uniform from 1 to the original's.
- ``IMAGE_FAMILIES`` are the nine of DeepEn2023.
  Channels of random members are uniform from 0.2 to 1.8 times the original's, kernel sizes are the
  original's or the next odd number.

No framework is needed.
"""

from joulecast.families.family_table import (
    FAMILIES,
    IMAGE_FAMILIES,
    WIDEST,
    Family,
    build_family,
    count_members,
    draw_family,
    is_family,
    make_family,
    name_member,
    parse_params,
)
