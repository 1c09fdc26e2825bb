"""`p2prl watch`: the newest rollouts of this machine as text. Never imports torch.

The tokens and the run's tokenizer came from strangers: a confined process decodes them, and control characters are
removed before anything is printed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from struct import iter_unpack
from typing import Annotated, Any

import msgspec
import typer

from p2prl.cli.options import AsJson, Home
from p2prl.cli.views.console import emit, labelled, output_width, say
from p2prl.cli.views.quantities import reward_text
from p2prl.cli.views.receipt_advice import advice
from p2prl.client.own_groups import OwnGroup, OwnGroups
from p2prl.config.own_replay import files_of, read_own_group
from p2prl.config.own_runs import OwnRun, find_run, runs_here, spools_of
from p2prl.config.worker_folder import default_home
from p2prl.errors import ConfigError, RemoteProtocolError
from p2prl.models.tokenizer.backend import read_special_tokens
from p2prl.models.tokenizer.confined import ConfinedTokenizer
from p2prl.plain_text import cleaned, counted
from p2prl.protocol.rollout_group import RolloutGroup
from p2prl.time_text import age_text

Run = Annotated[
    str,
    typer.Argument(metavar="RUN", help="A run's name or join link. Default: the newest rollout of any run."),
]
Follow = Annotated[bool, typer.Option("--follow", help="Go on with each new rollout, until Ctrl-C.")]


def watch(run: Run = "", follow: Follow = False, home: Home = None, as_json: AsJson = False) -> None:
    """Show a rollout that this machine has just made: the prompt, its answers, and what each was worth."""
    if follow and as_json:
        raise ConfigError("--follow prints lines for people", remedy="Leave out --json, or follow join --events.")
    base = home or default_home()
    shown: bytes | None = None
    with _Tokenizers() as tokenizers:
        while True:
            found = newest_rollout(_runs(base, run))
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


_NEWEST = 16
"""Groups looked at for one whose bytes are still here."""

_POLL_S = 1.0


@dataclass(frozen=True, slots=True)
class Rollout:
    """A group with its bytes."""

    run: OwnRun
    group: OwnGroup
    contents: RolloutGroup


def newest_rollout(runs: list[OwnRun]) -> Rollout | None:
    """The newest group of these runs whose bytes are still here."""
    newest: Rollout | None = None
    with spools_of(runs) as spools:
        for run, groups in spools:
            group = _newest_kept(groups)
            if group is not None and (newest is None or group[0].created > newest.group.created):
                newest = Rollout(run, group[0], read_own_group(group[1], group[2]).group)
    return newest


def rollout_document(rollout: Rollout, tokenizer: ConfinedTokenizer) -> dict[str, object]:
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


def _json(path: Path) -> dict[str, object]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"run files: {path.name} is not a JSON object") from error


_MOST_SHOWN = 4
"""Answers shown: the best, the worst and others between them tell what the policy is rewarded for."""


def rollout_lines(rollout: Mapping[str, Any], *, now: float, width: int | None) -> list[str]:
    """The rollout of `p2prl watch --json`; `now` is Unix seconds.

    On a terminal of `width` columns lines are wrapped and long texts end early; with None, for a file, they are whole.
    """
    answers = rollout["completions"]
    tokens = sum(answer["tokens"] for answer in answers)
    pace = f", {tokens / rollout['seconds']:,.0f} tokens/s" if rollout["seconds"] > 0 else ""
    heading = (
        f"{rollout['run']}  {rollout['task']}  slot {rollout['slot']:,} of v{rollout['version']:,}, sampled "
        f"{age_text(now - rollout['sampled_at'])} ago: "
        f"{counted(len(answers), 'answer')}, {counted(tokens, 'token')}{pace}"
    )
    lines = [*labelled("", cleaned(heading), width), *labelled("prompt   ", rollout["prompt"], width)]
    shown = _chosen(answers)
    for place in shown:
        answer = answers[place]
        label = f"#{place + 1:<3}{reward_text(answer['reward']):>4} "
        end = "" if answer["finished"] else " … (cut off at the run's longest answer)"
        lines += labelled(label, answer["text"] + end, width)
    if len(shown) < len(answers):
        lines.append(f"         and {counted(len(answers) - len(shown), 'more answer')}: --json shows all")
    return [*lines, *labelled("reward   ", _reward(rollout), width), *labelled("now      ", _state(rollout), width)]


def _chosen(answers: list[Mapping[str, Any]]) -> list[int]:
    """Places of the answers shown: the best, the worst, then the first others."""
    places = list(range(len(answers)))
    if len(places) <= _MOST_SHOWN or answers[0]["reward"] is None:
        return places[:_MOST_SHOWN]
    ordered = sorted(places, key=lambda place: -answers[place]["reward"])
    ends = dict.fromkeys([ordered[0], ordered[-1], *places])
    return sorted(list(ends)[:_MOST_SHOWN])


def _reward(rollout: Mapping[str, Any]) -> str:
    rewards = [answer["reward"] for answer in rollout["completions"] if answer["reward"] is not None]
    own = f"mean {sum(rewards) / len(rewards):.2f} by this machine's own scoring" if rewards else ""
    learner = rollout["learner_reward"]
    judged = "" if learner is None else f"mean {learner:.2f} by the learner"
    return ", ".join(part for part in (own, judged) if part) or "only the learner can score this task"


def _state(rollout: Mapping[str, Any]) -> str:
    why, _ = advice(rollout["state"], rollout["reason"])
    return f"{rollout['state']}: {why}"
