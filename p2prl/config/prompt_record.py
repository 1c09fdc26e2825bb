"""Record in a run folder of how its prompts were rendered, for the model card: the manifest has the results alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
from blake3 import blake3

from p2prl.errors import ConfigError

_FILE = "prompts.json"


@dataclass(frozen=True, slots=True)
class PromptRecord:
    """What stood around the prompts of a run."""

    template_blake3: str | None
    """BLAKE3 of the chat template's text, in hex; None for prompts as plain text."""
    system: str
    """System prompt; empty without one."""


def prompt_record(template: str | None, system: str) -> PromptRecord:
    """The record of a template's text, None without one, and a system prompt."""
    return PromptRecord(None if template is None else blake3(template.encode()).hexdigest(), system)


def write_prompt_record(run: Path, record: PromptRecord) -> None:
    """Keep a record in a run's folder."""
    (run / _FILE).write_bytes(msgspec.json.format(msgspec.json.encode(record)))


def read_prompt_record(run: Path) -> PromptRecord | None:
    """The record in a run's folder; None where there is none, as in runs made before there were records."""
    path = run / _FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=PromptRecord)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise ConfigError(
            f"{path} cannot be read: {error}", remedy="Remove it: the model card then says that it is not known."
        ) from error
