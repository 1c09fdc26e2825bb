"""Registries of named parts (losses, tasks, engines, transports), open to other packages through entry points.

A package adds a part by declaring an entry point, such as `countdown = "my_package:COUNTDOWN"` in the group
`p2prl.tasks`. A part is imported on first use, so an unused plugin costs nothing. A run manifest can select installed
code but never ships any.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar, cast

from p2prl.errors import ConfigError

T = TypeVar("T")

_SHOWN_NAME_CHARS = 64
"""Characters of an unknown name shown in a message, since it may come from a stranger's manifest."""


class Registry(Generic[T]):
    """Parts of one kind by name: p2prl's own, then those of installed packages."""

    def __init__(self, group: str, *, kind: str, builtin: Mapping[str, str], expected: type[T] | None = None) -> None:
        """`group` is the entry-point group, `kind` the word for a part in messages (`task`).

        `builtin` maps names to `module:attribute`, which plugins cannot override. If `expected` is given, a plugin of
        another type is rejected.
        """
        self._group = group
        self._kind = kind
        self._builtin = dict(builtin)
        self._expected = expected
        self._loaded: dict[str, T] = {}
        self._offered: dict[str, str] = {}
        """Origin of each part that this process itself offered, by name."""

    def offer(self, name: str, part: T, *, origin: str) -> None:
        """Add a part for the life of this process, such as one from a file; `origin` identifies its source.

        The same name may be offered again. ConfigError when p2prl or an installed package has this name.
        """
        if name in self._builtin or name in self._plugins():
            raise ConfigError(
                f"the {self._kind} {name[:_SHOWN_NAME_CHARS]!r} exists already", remedy="Give yours another name."
            )
        self._check_type(part, origin)
        self._loaded[name], self._offered[name] = part, origin

    def origin(self, name: str) -> str:
        """The origin of an offered part; empty for others."""
        return self._offered.get(name, "")

    def names(self) -> tuple[str, ...]:
        """Every name, the built-in ones first. Imports nothing."""
        return (*self._builtin, *sorted((set(self._plugins()) | set(self._offered)) - set(self._builtin)))

    def check(self, name: str) -> None:
        """Raise `ConfigError` when no part has this name. Imports nothing."""
        if name not in self.names():
            raise self._unknown(name)

    def get(self, name: str) -> T:
        """The part of this name. `ConfigError` if there is none or its package cannot be imported."""
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def _load(self, name: str) -> T:
        if name in self._builtin:
            module, _, attribute = self._builtin[name].partition(":")
            return cast(T, getattr(importlib.import_module(module), attribute))
        plugin = self._plugins().get(name)
        if plugin is None:
            raise self._unknown(name)
        try:
            part: Any = plugin.load()
        except (ImportError, AttributeError) as error:
            raise ConfigError(
                f"{self._kind} {name!r} cannot be loaded from {plugin.value}: {error}",
                remedy="Reinstall the package that provides it, or remove it.",
            ) from error
        self._check_type(part, plugin.value)
        return cast(T, part)

    def _check_type(self, part: Any, source: str) -> None:
        if self._expected is not None and not isinstance(part, self._expected):
            raise ConfigError(
                f"{source} is not a {self._kind}: expected {self._expected.__name__}, got {type(part).__name__}",
                remedy="See docs/extending.md.",
            )

    def _plugins(self) -> dict[str, EntryPoint]:
        return {plugin.name: plugin for plugin in entry_points(group=self._group)}

    def _unknown(self, name: str) -> ConfigError:
        shown = name[:_SHOWN_NAME_CHARS]
        names = self.names()
        near = difflib.get_close_matches(shown, names, n=3, cutoff=0.4)
        remedy = f"Did you mean {', '.join(near)}?" if near else f"Choose one of {', '.join(names)}."
        return ConfigError(f"unknown {self._kind} {shown!r}", remedy=remedy)
