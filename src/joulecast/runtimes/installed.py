"""Compare the runtime that a profile was made with to the one that is installed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

# Profiles of earlier versions name torch.compile as a runtime.
_PACKAGES = {"torch_compile": "torch"}


def find_installed_runtime(runtime: str) -> str:
    """Return framework and version as installed here: ``torch-2.11.0`` → ``torch-2.13.0``.

    It is empty if the framework is not installed, or if the given name has no version.
    """
    framework, dash, _ = runtime.partition("-")
    if not dash:
        return ""
    try:
        # Without the build: 2.13.0+cpu.
        package = _PACKAGES.get(framework, framework)
        return f"{framework}-{version(package).partition('+')[0]}"
    except PackageNotFoundError:
        return ""


def explain_runtime_difference(runtime: str) -> str:
    """Return a sentence on the installed version if it differs; empty if it does not."""
    installed = find_installed_runtime(runtime)
    if installed in ("", runtime):
        return ""
    return (
        f"The profile was made with {_describe(runtime)}, but {_describe(installed)} is installed "
        "here, which may run other kernels."
    )


def _describe(runtime: str) -> str:
    return runtime.replace("-", " ", 1)
