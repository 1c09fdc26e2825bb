"""JSON schema of run.toml, made from the settings dataclasses, for editors that complete and check TOML.

`python -m p2prl.config.run_schema > docs/run.schema.json` writes the committed copy. Keys, types, defaults and unknown
keys are as `toml_tables.parse` treats them; a key's description is the docstring under its field. Ranges are checked by
the program alone.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
import textwrap
import types
import typing
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

from p2prl.config.new_run import RunSettings

_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}


def run_schema() -> dict[str, object]:
    """The schema of a whole run.toml."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "p2prl run settings (run.toml)",
        **_table(RunSettings),
    }


def field_docs(kind: type) -> dict[str, str]:
    """The docstring under each field of a dataclass, on one line."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(definition, ast.ClassDef)
    docs = {}
    for node, after in zip(definition.body, definition.body[1:], strict=False):
        if (
            isinstance(node, ast.AnnAssign)
            and isinstance(node.target, ast.Name)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
            and isinstance(after.value.value, str)
        ):
            docs[node.target.id] = " ".join(after.value.value.split())
    return docs


def _table(kind: type) -> dict[str, object]:
    """A dataclass as an object whose unknown keys are refused."""
    hints, docs = typing.get_type_hints(kind), field_docs(kind)
    properties = {}
    required = []
    for each in fields(kind):
        shape = _shape(hints[each.name])
        if each.name in docs:
            shape["description"] = docs[each.name]
        properties[each.name] = shape | _default(each)
        if each.default is MISSING and each.default_factory is MISSING:
            required.append(each.name)
    table: dict[str, object] = {"type": "object", "properties": properties, "additionalProperties": False}
    return table | ({"required": required} if required else {})


def _shape(hint: Any) -> dict[str, object]:
    """The schema of one type, for every type that `toml_tables` reads."""
    if isinstance(hint, type) and is_dataclass(hint):
        return _table(hint)
    origin, arms = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _shape(next(arm for arm in arms if arm is not type(None)))
    if origin is tuple:
        return {"type": "array", "items": _shape(arms[0])}
    if origin is typing.Literal:
        return {"enum": list(arms)}
    if origin is dict:
        return {"type": "object"}
    return {"type": _TYPES[hint]}


def _default(each: Field[Any]) -> dict[str, object]:
    """The default of a plain setting; tables carry the defaults of their own keys, and an unset one has none."""
    value = each.default_factory() if each.default_factory is not MISSING else each.default
    if value is MISSING or value is None or is_dataclass(value) or isinstance(value, dict):
        return {}
    return {"default": list(value) if isinstance(value, tuple) else value}


def schema_text() -> str:
    """The committed text of the schema."""
    return json.dumps(run_schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(schema_text())
