"""Expect errors as users see them."""

from contextlib import contextmanager

import pytest


@contextmanager
def refusal(error, pattern=r"\S"):
    """Expect an error of one line that matches a pattern."""
    with pytest.raises(error, match=pattern) as caught:
        yield caught
    assert "\n" not in str(caught.value)
