"""`p2prl promote`: make a standby learner's folder the run's own, once the learner's machine is gone for good."""

from __future__ import annotations

import shlex
import sys
from typing import Annotated

import typer

from p2prl.cli.options import AsJson, RunFolderPath, takes_records
from p2prl.cli.views.console import emit, say


@takes_records
def promote(
    run: RunFolderPath,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask whether the old machine is gone for good.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make a standby learner's folder the run's own, once the learner's machine is gone for good.

    Nothing is trained yet: p2prl learn goes on from there, under the same link.
    """
    from p2prl.clock import SystemClock
    from p2prl.config.run_folder import open_folder
    from p2prl.errors import ConfigError
    from p2prl.learner.following.promotion import plan_promotion
    from p2prl.learner.following.promotion import promote as promote_folder
    from p2prl.plain_text import counted
    from p2prl.time_text import duration_text

    folder = open_folder(run)
    with folder.lock():
        promotion = plan_promotion(folder.paths)
        head = promotion.copy.head
        age = duration_text(max(0.0, SystemClock().now() - head.taken_ms / 1000))
        entries = counted(head.height, "ledger entry", "ledger entries")
        say(f"This folder holds the run up to step {head.step:,}, version {head.version:,}, {entries}, of {age} ago.")
        if promotion.fault:
            raise ConfigError(
                f"the learner went on without this standby learner: peers have {promotion.fault}",
                remedy="A learner that went on from here would sign these a second time, which volunteers take for"
                " fraud and leave. Bring back the old machine, or its disk. The newest checkpoint under"
                f" {folder.paths.standby} can begin a new run: p2prl init NAME --model CHECKPOINT.",
            )
        say(
            "Lost is what the learner computed after that. As far as this machine has heard, nobody has seen any of it;"
            " volunteers deliver its groups again."
        )
        if not (yes or promotion.is_begun):
            if not sys.stdin.isatty():
                raise ConfigError(
                    "nobody is there to say whether the old machine's learner is stopped for good",
                    remedy=f"Once it is: p2prl promote {shlex.quote(str(run))} --yes",
                )
            typer.confirm("Is the old machine's learner stopped, for good?", abort=True, err=True)
        promote_folder(folder.paths, promotion)
    say(f"Promoted. Go on with:  p2prl learn {shlex.quote(str(run))}")
    if as_json:
        emit({"run": str(run), "step": head.step, "version": head.version, "ledger_height": head.height})
