"""Model card of a base model: the license it states, and a name for people. Never a local path."""

from __future__ import annotations

import json
import re
from pathlib import Path

from p2prl.protocol import limits

NOT_STATED = "not stated"
"""License of a run whose maker named none, and whose model has no card."""

_CARD = "README.md"
_CARD_CHARS = 64 * 1024
"""Characters of a card that are read: its metadata stands first and is a few lines."""

_KEYS = r"license|license_name|base_model|model_name|(?:-[ \t]+)?name"
_VALUE = re.compile(rf"""(?m)^({_KEYS}):[ \t]*["']?([^\s"'#][^"'#\n]*?)["']?[ \t]*(?:#.*)?$""")

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_CACHE = re.compile(r"models--([A-Za-z0-9][\w.-]*?)--([A-Za-z0-9][\w.-]*)")
"""Folder of a model in the hub's cache; `snapshots/REVISION` below it is a model directory."""

_HEADING = re.compile(r"(?m)^#[ \t]+(.+?)[ \t]*#*$")
_FILE_LIKE = re.compile(r"[/\\~]|^\.")


def model_license(directory: Path) -> str:
    """The license in the metadata of the model's card; `NOT_STATED` without one.

    A card that says `other` names the license under `license_name`.
    """
    values = _card_metadata(directory)
    stated = values.get("license", NOT_STATED)
    name = values.get("license_name", stated) if stated == "other" else stated
    return name if name.isprintable() else NOT_STATED


def base_model_name(source: str, directory: Path, *, parameters: int) -> str:
    """The name for the manifest of a run that starts from `source`, whose files are in `directory`.

    Taken from, in this order: a hub id given as the source, the hub's cache, the card's metadata, its heading, the
    card's own base model; else the architecture and its size. Not from config.json's `_name_or_path`: a trainer writes
    the path of the checkpoint there, and `checkpoints/mine` looks like a hub id.
    """
    config = _config(directory)
    metadata = _card_metadata(directory)
    card = _card_text(directory)
    body = card.split("---\n", 2)[-1] if metadata else card
    heading = _HEADING.search(body)
    base = _hub_id(metadata.get("base_model"))
    candidates = (
        source if not Path(source).expanduser().is_dir() else "",
        _cached_id(directory),
        metadata.get("model_name", ""),
        metadata.get("name", ""),
        heading[1] if heading else "",
    )
    for name in candidates:
        if _usable(name, source):
            return name
    if base:
        return f"a model fine-tuned from {base}"
    kind = config.get("model_type")
    return (
        f"an unnamed {kind if isinstance(kind, str) and kind.isprintable() else 'model'} of {parameters:,} parameters"
    )


def _usable(name: str, source: str) -> bool:
    """A printable name that cannot be a path on this machine, nor the path that was given."""
    if not name or len(name) > limits.MAX_TEXT_CHARS or not name.isprintable():
        return False
    if name == source and not Path(source).expanduser().is_dir():
        return True
    return bool(_HUB_ID.fullmatch(name)) or not _FILE_LIKE.search(name)


def _cached_id(directory: Path) -> str:
    resolved = directory.expanduser().absolute()
    match = _CACHE.fullmatch(resolved.parent.parent.name) if resolved.parent.name == "snapshots" else None
    return f"{match[1]}/{match[2]}" if match else ""


def _hub_id(value: object) -> str:
    """A hub id on a card, unless there is a directory of that name here."""
    is_hub_id = isinstance(value, str) and _HUB_ID.fullmatch(value) and not Path(value).exists()
    return str(value) if is_hub_id else ""


def _config(directory: Path) -> dict[str, object]:
    try:
        config = json.loads((directory / "config.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return config if isinstance(config, dict) else {}


def _card_text(directory: Path) -> str:
    """The beginning of the model's card; empty without one."""
    try:
        with (directory / _CARD).open(encoding="utf-8-sig", errors="replace") as file:
            return file.read(_CARD_CHARS) + "\n"
    except OSError:
        return ""


def _card_metadata(directory: Path) -> dict[str, str]:
    """Plain values in the metadata of the model's card; empty without any.

    `name` is that of the first entry of `model-index`.
    """
    parts = _card_text(directory).split("---\n", 2)
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
