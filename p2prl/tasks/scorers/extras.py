"""Import of an optional library, with the sentence that says how to install it."""

from __future__ import annotations

import importlib
from types import ModuleType

from p2prl.errors import ConfigError
from p2prl.installation import install_command


def import_extra(module: str, extra: str, *, scorer: str) -> ModuleType:
    """The module of an optional library. `ConfigError` naming the extra when it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"the scorer {scorer!r} needs the package {module.partition('.')[0]!r}: {str(error)[:200]}",
            remedy=install_command(extra),
        ) from error
