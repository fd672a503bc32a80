"""Write the page of the public Python names; mkdocstrings fills in their docstrings."""

from __future__ import annotations

import inspect

import joulecast


def write_page() -> str:
    """Return the page in Markdown."""
    functions, classes = [], []
    for name in sorted(joulecast.__all__):
        one = getattr(joulecast, name)
        if inspect.isclass(one):
            classes.append(f"::: {one.__module__}.{one.__name__}")
        elif callable(one):
            functions.append(f"::: {one.__module__}.{one.__name__}")
    return "\n\n".join(
        (
            "# Python",
            "Every name here is an attribute of `joulecast`: `joulecast.estimate(...)`. Importing\n"
            "`joulecast` imports neither PyTorch nor NumPy before they are needed.",
            *functions,
            *classes,
        )
    )
