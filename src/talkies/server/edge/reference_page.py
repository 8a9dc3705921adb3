"""``/docs``: the contract of /openapi.json as one plain page. No script, nothing from elsewhere: it works offline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

REFERENCE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
_STYLE = (
    ":root{color-scheme:light dark;font:16px/1.5 system-ui,sans-serif}"
    "body{max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "code{font-family:ui-monospace,monospace}"
    "table{border-collapse:collapse;width:100%}"
    "th,td{text-align:left;vertical-align:top;padding:.25rem .75rem .25rem 0;border-bottom:1px solid #8884}"
)


def reference_page(schema: Mapping[str, Any]) -> str:
    """HTML of every endpoint, its answers and the fields of its body."""
    info = schema.get("info", {})
    title = escape(f"{info.get('title', '')} {info.get('version', '')}")
    body = "".join(_operations(schema))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}: API</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>'
        f'<h1>{title}</h1><p>The same for machines: <a href="openapi.json">openapi.json</a>. '
        f"Send a key as <code>Authorization: Bearer KEY</code> where the server has one.</p>{body}</body></html>"
    )


def _operations(schema: Mapping[str, Any]) -> Iterator[str]:
    for path, operations in schema.get("paths", {}).items():
        for method, operation in operations.items():
            yield f"<h2><code>{escape(method.upper())} {escape(path)}</code></h2>"
            if operation.get("description"):
                yield f"<p>{escape(operation['description'])}</p>"
            yield from _table(
                ("parameter", "values"),
                [(p["name"], _values(p.get("schema", {}))) for p in operation.get("parameters", ())],
            )
            content = operation.get("requestBody", {}).get("content", {})
            if content:
                yield f"<p>Body: {', '.join(f'<code>{escape(kind)}</code>' for kind in content)}</p>"
                first = next(iter(content.values())).get("schema", {})
                required = set(first.get("required", ()))
                rows = [
                    (name + (" (required)" if name in required else ""), _values(field))
                    for name, field in first.get("properties", {}).items()
                ]
                yield from _table(("field", "values"), rows)
            answers = [(code, answer.get("description", "")) for code, answer in operation.get("responses", {}).items()]
            yield from _table(("answer", "meaning"), answers)


def _table(head: tuple[str, str], rows: list[tuple[str, str]]) -> Iterator[str]:
    if rows:
        yield f"<table><tr><th>{head[0]}</th><th>{head[1]}</th></tr>"
        for name, text in rows:
            yield f"<tr><td><code>{escape(name)}</code></td><td>{escape(text)}</td></tr>"
        yield "</table>"


def _values(field: Mapping[str, Any]) -> str:
    """A schema of one value, in words."""
    if "anyOf" in field:
        words = [_values(option) for option in field["anyOf"] if option.get("type") != "null"]
        said = " or ".join(dict.fromkeys(word for word in words if word))
    elif "enum" in field:
        said = ", ".join(map(str, field["enum"]))
    elif field.get("type") == "array":
        said = f"list of {_values(field.get('items', {})) or 'values'}"
    elif field.get("type") == "object":
        keys = ", ".join(field.get("properties", {}))
        said = f"object {{{keys}}}" if keys else "object"
    else:
        said = str(field.get("type", ""))
        low, high = field.get("minimum"), field.get("maximum")
        if low is not None or high is not None:
            said += f" {'' if low is None else low}..{'' if high is None else high}"
    description = field.get("description")
    return f"{said}. {description}" if description and said else said or description or ""
