"""Model card of a directory: its metadata, and the license it states."""

from __future__ import annotations

import re
from pathlib import Path

NOT_STATED = "not stated"
"""License of a run whose maker named none, and whose model has no card."""

_CARD = "README.md"
_CARD_CHARS = 64 * 1024
"""Characters of a card that are read: its metadata stands first and is a few lines."""

_KEYS = r"license|license_name|base_model|model_name|(?:-[ \t]+)?name"
_VALUE = re.compile(rf"""(?m)^({_KEYS}):[ \t]*["']?([^\s"'#][^"'#\n]*?)["']?[ \t]*(?:#.*)?$""")


def card_text(directory: Path) -> str:
    """The beginning of the model's card; empty without one."""
    try:
        with (directory / _CARD).open(encoding="utf-8-sig", errors="replace") as file:
            return file.read(_CARD_CHARS) + "\n"
    except OSError:
        return ""


def card_metadata(directory: Path) -> dict[str, str]:
    """Plain values in the metadata of the model's card; empty without any.

    `name` is that of the first entry of `model-index`.
    """
    parts = card_text(directory).split("---\n", 2)
    if len(parts) < 3 or parts[0].strip():
        return {}
    values: dict[str, str] = {}
    for key, value in _VALUE.findall(parts[1]):
        name = key.lstrip("- \t")
        if name == "name":
            values.setdefault(name, value)
        else:
            values[name] = value
    return values


def model_license(directory: Path) -> str:
    """The license in the metadata of the model's card; `NOT_STATED` without one.

    A card that says `other` names the license under `license_name`.
    """
    values = card_metadata(directory)
    stated = values.get("license", NOT_STATED)
    name = values.get("license_name", stated) if stated == "other" else stated
    return name if name.isprintable() else NOT_STATED
