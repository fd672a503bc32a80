"""Test that facts about kinds are in their rows, and that no other module repeats them."""

import ast
from pathlib import Path

import pytest

import joulecast
from joulecast.kinds import KINDS

SOURCE = Path(joulecast.__file__).parent
# The table, and the modules of runtimes that a new kind has to be added to.
ALLOWED = (
    "kinds/",
    "runtimes/buildable.py",
    "runtimes/onnx/op_builders.py",
    "runtimes/onnx/sequence_builders.py",
    "runtimes/torch/op_readers.py",
    "runtimes/torch/modules.py",
)
# A field ``kind`` of another meaning: events of a schedule, and sorts of NumPy types.
OTHER_MEANING = (
    "uses/plan/",
    "cli/plan.py",
    "cli/print_plan.py",
    "api/plan.py",
    "runtimes/onnx/own_file.py",
    "runtimes/onnx/runtime.py",
)
every_kind = pytest.mark.parametrize("row", KINDS.values(), ids=KINDS)


@every_kind
def test_input_widths_are_widths(row):
    assert set(row.input_widths) <= set(row.widths)


@every_kind
def test_width_divisor_is_a_size(row):
    assert not row.width_divisor or row.width_divisor in row.sizes


@every_kind
def test_channel_axis_is_first_last_or_open(row):
    assert row.channel_axis in (0, -1, None)


@every_kind
def test_only_views_flatten_permute_or_select(row):
    assert row.is_view or not (row.flattens or row.permutes_axes or row.selects_elements)
    assert row.can_be_in_tail or not row.is_view


def test_kinds_of_each_sort():
    assert names_where("is_convolution") == {name for name in KINDS if name.startswith("conv")}
    assert names_where("is_recurrent") == {"lstm", "gru", "rnn"}
    assert names_where("is_view") == {"flatten", "view", "permute", "last"}
    assert names_where("reads_tokens") == {"embedding", "embedding_bag"}
    assert names_where("combines_inputs") == {"elementwise"}
    assert names_where("counts_params") == {"elementwise", "index"}
    assert names_where("has_head_dim") == names_where("packs_inputs") == {"sdpa"}
    functions = {
        "elementwise",
        "matmul",
        "sdpa",
        "index",
        "scatter",
        "sort",
        "slice",
        "gradient_copy",
    }
    assert names_where("is_function") == functions
    assert [KINDS[f"conv{dims}d"].spatial_dims for dims in (1, 2, 3)] == [1, 2, 3]


def names_where(attribute):
    return {name for name, row in KINDS.items() if getattr(row, attribute)}


def test_no_other_module_asks_for_a_kind_by_name():
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if not name.startswith((*ALLOWED, *OTHER_MEANING)):
            lines = find_questions(path.read_text(encoding="utf-8"))
            found += [f"{name}:{line}" for line in lines]
    assert found == []


def find_questions(source):
    """Return the lines that compare ``.kind`` with strings, or take it apart."""
    tree = ast.parse(source)
    constants = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign) and holds_string(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return [node.lineno for node in ast.walk(tree) if asks_for_kind(node, constants)]


def asks_for_kind(node, constants):
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        others = [side for side in sides if not is_kind(side)]
        return len(others) < len(sides) and any(
            holds_string(side) or (isinstance(side, ast.Name) and side.id in constants)
            for side in others
        )
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        methods = ("startswith", "endswith", "partition", "split", "find")
        is_block = "'block:'" in ast.unparse(node)
        return node.func.attr in methods and is_kind(node.func.value) and not is_block
    if isinstance(node, ast.Match):
        return is_kind(node.subject)
    return isinstance(node, ast.Subscript) and is_kind(node.value)


def is_kind(node):
    return isinstance(node, ast.Attribute) and node.attr == "kind"


def holds_string(node):
    return any(isinstance(n, ast.Constant) and isinstance(n.value, str) for n in ast.walk(node))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("layer.kind == 'linear'", True),
        ("layer.kind in ('lstm', 'gru')", True),
        ("NAMES = ('lstm', 'gru')\nlayer.kind in NAMES", True),
        ("'conv' in op.kind", True),
        ("op.kind.startswith('conv')", True),
        ("op.kind[-2]", True),
        ("layer.kind.startswith('block:')", False),
        ("old.kind == new.kind", False),
        ("find_kind(layer.kind).is_view", False),
        ("names[layer.kind]", False),
    ],
)
def test_guard_finds_tests_of_a_kind(source, expected):
    assert bool(find_questions(source)) is expected
