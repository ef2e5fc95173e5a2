"""A page for people from the OpenAPI document: one HTML text, no script, nothing loaded from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from typing import Any

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
code, pre { font: 13px/1.4 ui-monospace, monospace; } pre { background: #f4f4f4; padding: .7rem; overflow: auto; }
details { border: 1px solid #ddd; border-radius: 4px; margin: .3rem 0; padding: .3rem .7rem; }
summary { cursor: pointer; }
b { display: inline-block; width: 4.5rem; } td, th { text-align: left; padding-right: 1rem; }
"""


def render(document: Mapping[str, Any]) -> str:
    """Return the page of an OpenAPI document."""
    title = escape(document["info"]["title"])
    parts = [f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><style>{STYLE}</style>"]
    parts.append(f"<h1>{title}</h1><p>{escape(document['info'].get('description', ''))}</p>")
    parts.append("<p>The document itself: <a href=/openapi.json>/openapi.json</a></p>")
    by_tag: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            by_tag.setdefault(operation.get("tags", [""])[0], []).append(_operation(method, path, operation))
    for tag, operations in by_tag.items():
        parts.append(f"<h2>{escape(tag)}</h2>" + "".join(operations))
    parts.append("<h2>Types</h2>")
    for name, schema in document.get("components", {}).get("schemas", {}).items():
        parts.append(f"<details id={escape(name)}><summary>{escape(name)}</summary>{_json(schema)}</details>")
    return "".join(parts)


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> str:
    text = escape(operation.get("description", ""))
    rows = "".join(
        f"<tr><td><code>{escape(it['name'])}</code><td>{escape(it['in'])}<td>{'required' * it.get('required', False)}"
        f"<td>{escape(it.get('description', ''))}"
        for it in operation.get("parameters", [])
    )
    body = operation.get("requestBody")
    return (
        f"<details><summary><b>{method.upper()}</b><code>{escape(path)}</code></summary><p>{text}</p>"
        + (f"<table>{rows}</table>" if rows else "")
        + (f"<p>Body</p>{_json(body)}" if body else "")
        + f"<p>Answers</p>{_json(operation.get('responses', {}))}</details>"
    )


def _json(value: Any) -> str:
    return f"<pre>{escape(json.dumps(value, indent=1))}</pre>"
