"""Write the page of the web API, from the OpenAPI description of the application."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from joulecast.web.app import create_app
from joulecast.web.dashboard import WebSettings


def write_page() -> str:
    """Return the page in Markdown."""
    description = create_app(WebSettings()).openapi()
    lines = [
        "# Web API",
        "",
        "`joulecast serve` answers these requests; `/api/openapi.json` of a running server is the",
        "same as OpenAPI.",
        "",
    ]
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            lines += _describe(path, method, operation)
    lines += ["## Records", ""]
    for name, schema in sorted(description.get("components", {}).get("schemas", {}).items()):
        lines += _describe_record(name, schema)
    return "\n".join(lines)


def _describe(path: str, method: str, operation: dict[str, Any]) -> Iterator[str]:
    yield f"## {method.upper()} {path}"
    yield ""
    yield operation.get("description") or operation.get("summary", "")
    yield ""
    rows = [
        f"| `{one['name']}` | {one['in']} | {_name_type(one['schema'])} | {_tell(one)} |"
        for one in operation.get("parameters", [])
    ]
    if rows:
        yield from ("| parameter | in | type | meaning |", "|---|---|---|---|", *rows, "")
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        yield f"Body: `{kind}`, {_name_type(content.get('schema', {}))}."
        yield ""
    answers = ", ".join(
        f"`{code}` {answer.get('description', '')}"
        for code, answer in operation["responses"].items()
    )
    yield f"Answers: {answers}."
    yield ""


def _describe_record(name: str, schema: dict[str, Any]) -> Iterator[str]:
    yield f"### {name}"
    yield ""
    text, _, attributes = schema.get("description", "").partition("Attributes:\n")
    yield text
    yield ""
    meanings = _read_attributes(attributes)
    required = schema.get("required", [])
    rows = []
    for field, one in schema.get("properties", {}).items():
        meaning = one.get("description") or meanings.get(field, "")
        rows.append(
            f"| `{field}`{' (required)' if field in required else ''} | {_name_type(one)} "
            f"| {_tell({'schema': one, 'description': meaning})} |"
        )
    if rows:
        yield from ("| field | type | meaning |", "|---|---|---|", *rows, "")


def _read_attributes(text: str) -> dict[str, str]:
    """Return the meaning of each field in the second part of a docstring."""
    found = re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", text, flags=re.MULTILINE)
    return {name: " ".join(meaning.split()) for name, meaning in found}


def _tell(parameter: dict[str, Any]) -> str:
    text = " ".join(str(parameter.get("description", "")).split()).replace("|", "&#124;")
    return (
        text
        if parameter.get("required") or "default" not in parameter["schema"]
        else (f"{text} (default `{parameter['schema']['default']}`)".strip())
    )


def _name_type(schema: dict[str, Any]) -> str:
    """Return the type in words."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[-1]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_name_type(one) for one in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"`{one}`" for one in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_name_type(schema.get('items', {}))}"
    return str(schema.get("type", "anything"))
