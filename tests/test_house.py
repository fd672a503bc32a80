"""Check what protects users and readers: units in public names, links, and the size of the code."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "joulecast"

UNITS = (
    "_j", "_j2", "_kwh", "_wh", "_s", "_ms", "_w", "_g", "_bytes", "flops", "_share", "_percent",
    "_probability", "_per_flop", "_hz", "seconds",
)  # fmt: skip
# Floats without a unit, and why that is right.
UNITLESS = {
    "level": "probability of an interval, the statistical term",
    "confidence": "probability, the statistical term",
    "floor": "of pruning, a share below 1 or a number of channels",
    "share": "0 to 1",
    "missing": "of a plan, in the unit beside it",
    "price": "in the currency beside it",
    "cost_before": "of pruning, in joules or FLOPs as the unit beside it says",
    "cost_after": "of pruning, in joules or FLOPs as the unit beside it says",
    "probability": "0 to 1",
    "pace": "of a host, over that of others",
    "pace_log_sd": "of a logarithm",
    "mean": "of a Gaussian process, in the unit of its values",
    "scale": "of a Gaussian process, in the unit of its values",
    "signal_variance": "of a Gaussian process over scaled values",
    "nugget": "of a Gaussian process over scaled values",
    "log_mean": "of a logarithm",
    "log_sd": "of a logarithm",
    "log_variance": "of a logarithm",
    "nugget_variance": "of a logarithm",
    "outlier_variance": "of a logarithm",
    "scatter_variance": "of a logarithm",
}
# Non-blank lines of Python. A change may lower a budget, and never raises one.
BUDGETS = {"src": 53_710, "tests": 31_310, "benchmarks": 5_150}


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def list_modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def name_of(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def list_functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(parse(path)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def list_arguments(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
    arguments = function.args
    found = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return [one for one in found if one.arg not in ("self", "cls")]


def is_record(node: ast.ClassDef) -> bool:
    bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
    return bool(bases & {"Record", "Op"}) or node.name.endswith("Options")


def is_float(annotation: ast.expr | None) -> bool:
    # Amount and the like are floats with limits (records/codec.py).
    floats = r"(Annotated\[)?(float|Amount|Share|UnixTime|_Work)\b"
    return annotation is not None and re.match(floats, ast.unparse(annotation)) is not None


def list_public_floats() -> Iterator[tuple[str, str]]:
    """Yield where a float is public, and its name: fields of records, arguments of the API."""
    for path in list_modules():
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.ClassDef) and is_record(node) and not node.name.startswith("_"):
                for field in node.body:
                    if isinstance(field, ast.AnnAssign) and is_float(field.annotation):
                        yield f"{name_of(path)}:{node.name}", ast.unparse(field.target)
        if name_of(path).startswith("features/"):
            for function in list_functions(path):
                if "verb" in {ast.unparse(one) for one in function.decorator_list}:
                    for argument in list_arguments(function):
                        if is_float(argument.annotation):
                            yield f"{name_of(path)}:{function.name}", argument.arg


def test_public_floats_carry_their_unit():
    assert set(UNITLESS) <= {name for _, name in list_public_floats()}, "take unused ones out"
    bare = [
        f"{where}.{name}"
        for where, name in list_public_floats()
        if not name.endswith(UNITS) and name not in UNITLESS
    ]
    assert not bare


def test_public_class_names_are_unique():
    found = defaultdict(list)
    for path in list_modules():
        for node in parse(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(name_of(path))
    assert not {name: paths for name, paths in found.items() if len(paths) > 1}


def count_lines(path: Path) -> int:
    return sum(1 for line in path.read_text(encoding="utf-8").splitlines() if line.strip())


@pytest.mark.parametrize("folder", BUDGETS)
def test_code_stays_within_its_budget(folder):
    lines = sum(map(count_lines, (ROOT / folder).rglob("*.py")))
    assert lines <= BUDGETS[folder], "smaller is better: remove as much as you add"


def list_links(page: Path) -> set[Path]:
    targets = re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))
    return {(page.parent / one).resolve() for one in targets if "://" not in one}


def test_every_docs_page_is_linked_and_every_link_exists():
    pages = {*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*/*.md")}
    broken = [f"{page}: {one}" for page in pages for one in list_links(page) if not one.exists()]
    assert not broken
    reached, queue = set(), [ROOT / "README.md"]
    while queue:
        page = queue.pop()
        if page.is_dir():
            page = page / "README.md"
        if page.suffix == ".md" and page.exists() and page not in reached:
            reached.add(page)
            queue += list_links(page)
    assert not {page.relative_to(ROOT) for page in pages - reached}


def test_readme_is_a_landing_page():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 700
