"""Data sets of the Hugging Face hub, `hub:OWNER/NAME[/CONFIG]@SPLIT`, as the parquet files that the hub keeps of each.

The hub writes them for data sets of any format, at a branch of their own, so no loading script of a stranger runs here.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from p2prl.errors import ConfigError

PREFIX = "hub:"

_REVISION = "refs/convert/parquet"
_SOURCE = re.compile(r"hub:([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:/([\w.-]+))?@([\w.-]+)")
_EXAMPLE = "Write it as hub:OWNER/NAME@SPLIT, such as hub:openai/gsm8k/main@train."


def is_hub_data(source: str) -> bool:
    """Whether a source is of the hub."""
    return source.startswith(PREFIX)


def hub_name(source: str) -> str:
    """A name for the data: the data set's own."""
    match = _SOURCE.fullmatch(source)
    return match[1].partition("/")[2] if match else ""


@cache
def hub_files(source: str) -> tuple[Path, ...]:
    """The files of a split, downloaded once and kept where the hub's library keeps them.

    `ConfigError` when the source is misspelled, names no data set, or not one configuration and split of it.
    """
    match = _SOURCE.fullmatch(source)
    if match is None:
        raise ConfigError(f"{source[:80]} names no split of a data set of the hub", remedy=_EXAMPLE)
    import huggingface_hub  # here: it takes a while, and most data is in files

    name, config, split = match.groups()
    try:
        listed = huggingface_hub.list_repo_files(name, repo_type="dataset", revision=_REVISION)
        chosen = _of_split(source, [each for each in listed if each.endswith(".parquet")], config, split)
        return tuple(
            Path(huggingface_hub.hf_hub_download(name, each, repo_type="dataset", revision=_REVISION))
            for each in chosen
        )
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{source} cannot be downloaded: {' '.join(str(error).split())[:300]}",
            remedy="Check the name and the connection, or download its files and use their paths.",
        ) from error


def _of_split(source: str, listed: list[str], config: str | None, split: str) -> list[str]:
    """The files `CONFIG/SPLIT/NNNN.parquet` of a split, in order."""
    configs = sorted({each.split("/")[0] for each in listed})
    chosen = config or (configs[0] if len(configs) == 1 else "default" if "default" in configs else "")
    if chosen not in configs:
        named = f"no configuration {config!r}" if config else "several configurations"
        raise ConfigError(
            f"{source} has {named}" if configs else f"the hub keeps no parquet files of {source}",
            remedy=f"Give one of {', '.join(configs[:20])}: {PREFIX}OWNER/NAME/CONFIG@{split}" if configs else _EXAMPLE,
        )
    splits = sorted({each.split("/")[1] for each in listed if each.startswith(f"{chosen}/")})
    if split not in splits:
        raise ConfigError(f"{source}: there is no split {split!r}", remedy=f"Splits: {', '.join(splits)}.")
    return sorted(each for each in listed if each.startswith(f"{chosen}/{split}/"))
