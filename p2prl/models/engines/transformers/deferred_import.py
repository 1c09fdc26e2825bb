"""Import of a library whose optional dependencies are imported later, when one of their functions is called."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any


class _Deferred(ModuleType):
    """A module of functions that import the real ones when they are called."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        return partial(_call, self.__name__, name)


def _call(module: str, name: str, *arguments: Any, **options: Any) -> Any:
    return getattr(importlib.import_module(module), name)(*arguments, **options)


@contextmanager
def deferred_import(*modules: str) -> Iterator[None]:
    """In this block `from MODULE import function` loads nothing: the module is imported at the function's first call.

    For a library that imports others wherever they are installed, needs seconds for them, and uses them in few places.
    Modules that are loaded already stay as they are. For imports while a program starts: it holds for every thread.
    """
    placed = {name: _Deferred(name) for name in modules if name not in sys.modules}
    sys.modules.update(placed)
    try:
        yield
    finally:
        for name in placed:
            del sys.modules[name]
