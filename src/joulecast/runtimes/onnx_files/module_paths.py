"""Find the modules that the nodes of an exported graph belong to, from their names.

PyTorch's exporters name nodes after modules (``/layer1/layer1.0/conv1/Conv``), or write the modules
into the metadata of a node.
"""

from __future__ import annotations

import ast

import onnx

_SCOPES = "pkg.torch.onnx.name_scopes"
_LONGEST_SCOPES = 10_000
_LONGEST_PATH = 200
_WEIGHT_SUFFIXES = (".weight", ".bias", ".kernel")


def find_module_path(node: onnx.NodeProto) -> str:
    """Return the name of a node's module, ``layer1.0.conv1``; empty if it is not known."""
    for entry in node.metadata_props:
        if entry.key == _SCOPES and len(entry.value) <= _LONGEST_SCOPES:
            return _parse_scopes(entry.value)
    *segments, _ = node.name.strip("/").split("/")
    path: list[str] = []
    for segment in segments:
        if path and segment.startswith(f"{path[-1]}."):
            path.pop()
        path.append(segment)
    return ".".join(path)[:_LONGEST_PATH]


def name_after_weight(weight: str) -> str:
    """Return the module that a weight is named after; empty if the exporter renamed it."""
    for suffix in _WEIGHT_SUFFIXES:
        if weight.endswith(suffix) and "::" not in weight:
            return weight[: -len(suffix)][:_LONGEST_PATH]
    return ""


def _parse_scopes(text: str) -> str:
    try:
        scopes = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return ""
    if not isinstance(scopes, list) or not all(isinstance(one, str) for one in scopes):
        return ""
    # The last one is the node itself.
    return next((one for one in reversed(scopes[:-1]) if one), "")[:_LONGEST_PATH]
