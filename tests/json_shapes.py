"""Shapes of the JSON documents that docs/json.md promises: their keys, nested, and the types of their values."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

DOC = Path(__file__).parents[1] / "docs" / "json.md"

_BLOCK = re.compile(r"^## (p2prl .+?)\n.*?^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)

_TYPES: Mapping[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
    "object": (dict,),
    "array": (list,),
}


class Promise(NamedTuple):
    """What one line of a shape promises of the values at its path."""

    types: tuple[str, ...]
    optional: bool
    """The key may be missing."""


Shape = Mapping[str, Promise]
"""By path: `.key` of an object, `.*` for any key of an object that is a table, `[]` for each element of an array."""


@functools.cache
def promised() -> Mapping[str, Shape]:
    """The shape of each command's document, by the headings of docs/json.md."""
    blocks = _BLOCK.findall(DOC.read_text())
    return {name: _with_parents(dict(_lines(block))) for names, block in blocks for name in names.split(", ")}


def _lines(block: str) -> Iterator[tuple[str, Promise]]:
    for line in block.splitlines():
        path, types = line.split(maxsplit=1)
        yield "." + path.removesuffix("?"), Promise(tuple(types.split(" or ")), path.endswith("?"))


def _with_parents(shape: dict[str, Promise]) -> Shape:
    """With the arrays and objects that the paths of other lines imply."""
    for path in tuple(shape):
        while path:
            child, path = path, path.removesuffix("[]") if path.endswith("[]") else path.rpartition(".")[0]
            if path:
                shape.setdefault(path, Promise(("array" if child == f"{path}[]" else "object",), optional=False))
    return shape


def breaches(document: Any, name: str, at: str = "") -> list[str]:
    """What in a document of `name`, or in an object at this path of it, is not as promised: empty when all of it is."""
    shape = promised().get(name)
    if shape is None:
        return [f"docs/json.md promises no shape for {name}"]
    return list(_object(document, at, shape))


def _object(value: Mapping[str, Any], path: str, shape: Shape) -> Iterator[str]:
    for key, part in value.items():
        named = f"{path}.{key}"
        yield from _value(part, named if named in shape else f"{path}.*", shape, shown=named)
    for child, promise in shape.items():
        parent, _, key = child.rpartition(".")
        if parent == path and key.isidentifier() and key not in value and not promise.optional:
            yield f"{child} is missing"


def _value(value: Any, path: str, shape: Shape, *, shown: str = "") -> Iterator[str]:
    promise = shape.get(path)
    if promise is None:
        yield f"{shown or path} is not promised"
    elif "any" in promise.types:
        return
    elif not any(_is(value, name) for name in promise.types):
        yield f"{path} is {value!r:.40}, not {' or '.join(promise.types)}"
    elif isinstance(value, dict):
        yield from _object(value, path, shape)
    elif isinstance(value, list):
        for part in value:
            yield from _value(part, f"{path}[]", shape)


def _is(value: Any, name: str) -> bool:
    return isinstance(value, _TYPES[name]) and (isinstance(value, bool) == (name == "boolean"))


def shape_of(kind: Any, path: str = "") -> Shape:
    """The shape that a row has by its annotations: a dataclass, a struct, or a plain type."""
    return dict(_of_type(kind, path))


_PLAIN = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}


def _of_type(kind: Any, path: str) -> Iterator[tuple[str, Promise]]:
    parts = list(get_args(kind)) if get_origin(kind) is UnionType else [kind]
    if path:
        yield path, Promise(tuple(_json_name(part) for part in parts), optional=False)
    for part in parts:
        origin, arguments = get_origin(part), get_args(part)
        if _json_name(part) == "array":
            yield from _elements(arguments, path)
        elif origin is dict:
            yield from _of_type(arguments[1], f"{path}.*")
        elif _json_name(part) == "object":
            for name, annotation in get_type_hints(part).items():
                yield from _of_type(annotation, f"{path}.{name}")


def _elements(arguments: tuple[Any, ...], path: str) -> Iterator[tuple[str, Promise]]:
    kinds = {part for part in arguments if part is not Ellipsis}
    yield from _of_type(float if kinds == {int, float} else kinds.pop(), f"{path}[]")


def _json_name(kind: Any) -> str:
    origin = get_origin(kind)
    if origin is Literal:
        return "string"
    if origin in (tuple, list):
        return "array"
    return _PLAIN.get(kind, "object")
