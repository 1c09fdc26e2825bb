"""Show the newest rollouts of this machine as text. Never imports torch.

The tokens and the run's tokenizer came from strangers: a confined process decodes them, and control characters are
removed before anything is printed.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from struct import iter_unpack
from typing import Any

import msgspec

from p2prl.cli.commands.own_spools import spools_of
from p2prl.cli.views.console import emit, output_width, say
from p2prl.cli.views.rollout_view import rollout_lines
from p2prl.client.own_groups import OwnGroup, OwnGroups
from p2prl.config.own_replay import files_of, read_own_group
from p2prl.config.own_runs import OwnRun, find_run, runs_here
from p2prl.config.worker_folder import default_home
from p2prl.errors import ConfigError, RemoteProtocolError
from p2prl.models.tokenizer.backend import read_special_tokens
from p2prl.models.tokenizer.confined import ConfinedTokenizer
from p2prl.protocol.rollout_group import RolloutGroup

_NEWEST = 16
"""Groups looked at for one whose bytes are still here."""

_POLL_S = 1.0


@dataclass(frozen=True, slots=True)
class Rollout:
    """A group with its bytes."""

    run: OwnRun
    group: OwnGroup
    contents: RolloutGroup


def watch_command(source: str, *, follow: bool, home: Path | None, as_json: bool) -> None:
    """Print the newest rollout, and with `follow` each later one. `ConfigError` when there is none."""
    if follow and as_json:
        raise ConfigError("--follow prints lines for people", remedy="Leave out --json, or follow join --events.")
    base = home or default_home()
    shown: bytes | None = None
    with _Tokenizers() as tokenizers:
        while True:
            found = newest_rollout(_runs(base, source))
            if found is None and not follow:
                raise ConfigError(
                    f"no rollout of this machine is kept under {base}",
                    remedy="Start p2prl join LINK, and try again once it samples.",
                )
            if found is None and shown is None:
                shown = b""
                say("waiting for the first rollout; Ctrl-C ends")
            if found is not None and found.group.digest != shown:
                shown = found.group.digest
                document = rollout_document(found, tokenizers.of(found.run))
                if as_json:
                    emit(document)
                else:
                    for line in rollout_lines(document, now=time.time(), width=output_width()):
                        sys.stdout.write(f"{line}\n")
                    sys.stdout.flush()
            if not follow:
                return
            time.sleep(_POLL_S)


def newest_rollout(runs: list[OwnRun]) -> Rollout | None:
    """The newest group of these runs whose bytes are still here."""
    newest: Rollout | None = None
    with spools_of(runs) as spools:
        for run, groups in spools:
            group = _newest_kept(groups)
            if group is not None and (newest is None or group[0].created > newest.group.created):
                newest = Rollout(run, group[0], read_own_group(group[1], group[2]).group)
    return newest


def rollout_document(rollout: Rollout, tokenizer: ConfinedTokenizer) -> dict[str, Any]:
    """A rollout as a JSON value."""
    group, receipt = rollout.contents, rollout.group.receipt
    scored = rollout.group.reward is not None
    return {
        "run": rollout.run.manifest.name,
        "seat": rollout.run.seat,
        "group": rollout.group.digest.hex(),
        "task": group.task,
        "version": group.version,
        "slot": group.slot,
        "sampled_at": rollout.group.created,
        "seconds": group.seconds,
        "state": rollout.group.state,
        "reason": rollout.group.reason,
        "learner_reward": None if receipt is None else receipt.reward,
        "prompt": tokenizer.decode(_tokens(group.prompt)),
        "completions": [
            {
                "text": tokenizer.decode(_tokens(each.tokens)),
                "tokens": len(each.tokens) // 4,
                "finished": each.finished,
                "reward": each.reward if scored else None,
            }
            for each in group.completions
        ],
    }


def _runs(home: Path, source: str) -> list[OwnRun]:
    runs = find_run(home, source) if source else runs_here(home)
    runs = [run for run in runs if run.spool.is_file()]
    if not runs:
        raise ConfigError(f"no volunteer has worked under {home}", remedy="Start with p2prl join LINK.")
    return runs


def _newest_kept(groups: OwnGroups) -> tuple[OwnGroup, bytes, bytes] | None:
    for group in groups.newest(_NEWEST):
        kept = groups.bytes_of(group.digest) if group.is_kept else None
        if kept is not None:
            return group, *kept
    return None


def _tokens(raw: bytes) -> list[int]:
    return [token for (token,) in iter_unpack("<I", raw)]


class _Tokenizers:
    """The tokenizers of runs, each in a confined process that is started once. Close them by leaving the block."""

    def __init__(self) -> None:
        self._open: dict[bytes, ConfinedTokenizer] = {}

    def __enter__(self) -> _Tokenizers:
        return self

    def __exit__(self, *exception: object) -> None:
        for tokenizer in self._open.values():
            tokenizer.close()

    def of(self, run: OwnRun) -> ConfinedTokenizer:
        if run.run not in self._open:
            self._open[run.run] = _open_tokenizer(run)
        return self._open[run.run]


def _open_tokenizer(run: OwnRun) -> ConfinedTokenizer:
    files = files_of(run, [run.blobs])
    special = read_special_tokens(_json(files["tokenizer_config.json"]) if "tokenizer_config.json" in files else {})
    settings = _json(files["config.json"])
    inner = settings.get("text_config")
    size = settings.get("vocab_size", inner.get("vocab_size") if isinstance(inner, dict) else None)
    if not isinstance(size, int):
        raise RemoteProtocolError("run files: config.json names no size of the vocabulary")
    return ConfinedTokenizer(files["tokenizer.json"].read_bytes(), special, size)


def _json(path: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"run files: {path.name} is not a JSON object") from error
