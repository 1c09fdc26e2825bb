"""`p2prl learn RUN --standby`: follow the run's learner from another machine, until Ctrl-C. Needs no torch."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import NoReturn

from p2prl.cli import crash_log
from p2prl.cli.interrupts import Interrupts
from p2prl.cli.options import NetworkOptions
from p2prl.cli.views.console import LiveView, emit, say
from p2prl.clock import SystemClock
from p2prl.config.network_options import UploadCaps
from p2prl.config.run_folder import open_folder
from p2prl.config.standby_learner import FollowedState, StandbyLearner, standby_network
from p2prl.config.worker_folder import write_status
from p2prl.errors import ConfigError
from p2prl.exit_codes import INTERRUPTED
from p2prl.net.process.handle import NetworkHandle

_NEEDED = ("run.manifest", "key.json", "run.toml")
"""What the owner brings; without the file link, `--via` names a peer."""


def follow_learner(
    directory: Path, options: NetworkOptions, *, lan: bool, peers: tuple[str, ...], as_json: bool
) -> NoReturn:
    """Follow the run's learner into `directory` until Ctrl-C; `peers` are dialed beside those of its link."""
    if missing := [name for name in _NEEDED if not (directory / name).exists()]:
        raise ConfigError(
            f"{directory} lacks {', '.join(missing)} of the run that is to be followed",
            remedy="Copy run.manifest, key.json (secret), run.toml and link there from the learner's run folder.",
        )
    folder = open_folder(directory)
    caps = UploadCaps(upload_mbit=options.upload_mbit, monthly_gb=options.monthly_gb)
    reach = options.reach(lan=lan, rereads_file=True)
    listen = tuple(options.listen or ())
    config = standby_network(folder, listen, caps, peers=peers, transport=options.transport, reach=reach)
    view, clock = LiveView(quiet=as_json), SystemClock()

    def report(state: str) -> None:
        write_status(directory / "status.json", {**standby.status(), "state": state, "time": clock.now()})

    def on_state(state: FollowedState) -> None:
        view.phase("standby learner", state.text)
        report(state.text)

    with folder.lock(), view.shown():
        crash_log.keep_in(directory)
        standby = StandbyLearner(folder, clock, on_notice=say)
        interrupts = Interrupts(standby.stop, standby.stop, finishing="Stopping. The newest whole copy stays.")
        with interrupts.handled():
            standby.run(NetworkHandle(config), on_state=on_state)
        report("stopped")
    if as_json:
        emit(standby.status())
    say(f"Stopped. Follow again with:  p2prl learn {shlex.quote(str(directory))} --standby")
    sys.exit(INTERRUPTED)
