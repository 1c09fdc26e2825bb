"""License of a model directory, as its model card states it."""

from __future__ import annotations

import re
from pathlib import Path

NOT_STATED = "not stated"
"""License of a run whose maker named none, and whose model has no card."""

_CARD = "README.md"
_CARD_CHARS = 64 * 1024
"""Characters of a card that are read: its metadata stands first and is a few lines."""

_VALUE = re.compile(r"""(?m)^(license|license_name):[ \t]*["']?([^\s"'#][^"'#\n]*?)["']?[ \t]*(?:#.*)?$""")


def model_license(directory: Path) -> str:
    """The license in the metadata of the model's card; `NOT_STATED` without one.

    A card that says `other` names the license under `license_name`.
    """
    try:
        with (directory / _CARD).open(encoding="utf-8-sig", errors="replace") as file:
            card = file.read(_CARD_CHARS) + "\n"
    except OSError:
        return NOT_STATED
    parts = card.split("---\n", 2)
    if len(parts) < 3 or parts[0].strip():
        return NOT_STATED
    values: dict[str, str] = dict(_VALUE.findall(parts[1]))
    stated = values.get("license", NOT_STATED)
    name = values.get("license_name", stated) if stated == "other" else stated
    return name if name.isprintable() else NOT_STATED
