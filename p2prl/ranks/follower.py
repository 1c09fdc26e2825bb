"""The program of every rank but rank 0, with commands on its standard input (`follower_process.py` starts it).

It ends with its pipe, so it never outlives the learner; a failure leaves its reason in the ranks' folder.
"""

from __future__ import annotations

import select
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO

import msgspec

from p2prl.errors import P2PRLError
from p2prl.exit_codes import TEMPORARY
from p2prl.models.base_model.attention import use_attention
from p2prl.models.base_model.local_base import load_policy
from p2prl.models.hardware.device_choice import use_threads
from p2prl.ranks import commands
from p2prl.ranks.execution import execute
from p2prl.ranks.process_group import RankGroup, folder_store
from p2prl.ranks.rank import Rank

READY = b"ready\n"
"""Written once everything is imported: what may take long, or fail, before the ranks meet."""

_LEARNER_DIES_S = 1.0
"""A collective fails before the pipe closes when the learner is killed: its sockets and pipes close one by one."""


def main(arguments: list[str], opening: threading.Lock) -> int:
    """Follow rank 0's commands; `arguments` are this rank's number and where all meet.

    `opening` is held while the meeting is opened. Returns an exit code, 0 once the learner has ended.
    """
    number, meeting = int(arguments[0]), msgspec.json.decode(arguments[1], type=commands.Meeting)
    folder = Path(meeting.folder)
    try:
        use_threads(meeting.threads)
        sys.stdout.buffer.write(READY)
        sys.stdout.buffer.flush()
        with opening:
            store = folder_store(folder, meeting.ranks)
        group = RankGroup.on_host(store, rank=number, ranks=meeting.ranks)
        follow(sys.stdin.buffer, group)
    except (RuntimeError, MemoryError, OSError, P2PRLError) as error:
        with suppress(FileNotFoundError):
            reason_file(folder, number).write_text(" ".join(str(error).split())[:500])
        if not _hangs_up(sys.stdin.fileno(), _LEARNER_DIES_S):
            return TEMPORARY  # the learner reads the reason, and removes the folder
    return 0


def reason_file(folder: Path, number: int) -> Path:
    """Where rank `number` leaves the reason of its end."""
    return folder / f"reason-{number}"


def _hangs_up(pipe: int, wait_s: float) -> bool:
    """Whether the pipe's other end is closed within `wait_s` seconds, with bytes left to read or not."""
    poll = select.poll()
    poll.register(pipe, 0)  # a hangup is always reported
    return bool(poll.poll(1000 * wait_s))


def follow(pipe: IO[bytes], group: RankGroup) -> None:
    """Execute the commands of rank 0 until they end."""
    rank: Rank | None = None
    while (command := commands.receive(pipe)) is not None:
        if isinstance(command, commands.Load):
            loaded = load_policy(
                Path(command.weights), Path(command.first), command.lora, device=group.device, dtype=command.dtype
            )
            use_attention(loaded.model, command.attention)
            rank = Rank(loaded.model, command.settings, group, command.parallel)
        else:
            assert rank is not None, "the model is loaded first"
            execute(command, rank)
