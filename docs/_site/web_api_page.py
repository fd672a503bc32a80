"""Write the page of the web API, from the OpenAPI description of the application."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from joulecast.web.app import create_app
from joulecast.web.web_settings import WebSettings


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
        return f"`{schema['$ref'].rsplit('/', 1)[-1]}`"
    if "anyOf" in schema:
        return " or ".join(_name_type(one) for one in schema["anyOf"])
    return str(schema.get("type", "anything"))
