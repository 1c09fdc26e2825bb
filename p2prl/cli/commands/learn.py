"""`p2prl learn`: train a run folder until its updates are done or Ctrl-C."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from p2prl.cli import crash_log
from p2prl.cli.commands.learn_link import LearnerLink, WatchedPort, kept_listen
from p2prl.cli.commands.learn_sampler import LocalSampler
from p2prl.cli.commands.learn_trackers import check_tracker, tracker
from p2prl.cli.device_errors import device_failures_explained, unrepeatable_explained
from p2prl.cli.interrupts import Interrupts
from p2prl.cli.options import AsJson, Lan, NetworkOptions, RunFolderPath, takes_records
from p2prl.cli.reach import further_peers
from p2prl.cli.views.console import LiveView, emit, say
from p2prl.cli.views.learner_view import WAITING, update_line, update_panel, waiting_text
from p2prl.cli.views.link_qr import show_qr
from p2prl.clock import SystemClock
from p2prl.config.host_launch import HostLaunch
from p2prl.config.index_addresses import board_url, index_url
from p2prl.config.network_options import UploadCaps
from p2prl.config.run_folder import open_folder
from p2prl.config.toml_tables import with_changes
from p2prl.config.worker_folder import write_status
from p2prl.errors import ConfigError
from p2prl.exit_codes import INTERRUPTED
from p2prl.index.run_lister import RunLister, listed_until_end
from p2prl.learner.following.promotion import refuse_standby
from p2prl.net.process.bridge import NetworkPort
from p2prl.net.process.control import Status
from p2prl.net.process.handle import NetworkHandle
from p2prl.net.transports.multiaddrs import split_peer
from p2prl.net.transports.transport_registry import TRANSPORTS
from p2prl.plain_text import counted

if TYPE_CHECKING:
    from p2prl.config.new_run import RunFolder
    from p2prl.learner.assembly import Judges
    from p2prl.learner.service import Learner
    from p2prl.net.process.bridge import NetworkPort


Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A setting of this start, not run.toml's: learner.optimizer.learning_rate=1e-5. Repeatable. "
        "Default: none.",
    ),
]
Via = Annotated[
    list[str] | None,
    typer.Option(
        "--via",
        metavar="MULTIADDR",
        help="A peer to dial first and to name in the link: for a learner that nobody can dial. Default: none.",
    ),
]
ListAt = Annotated[
    list[str] | None,
    typer.Option(
        "--list",
        metavar="URL",
        help="List the run in public at this index while it runs; may be repeated. Default: run.toml's.",
    ),
]
Board = Annotated[
    str | None,
    typer.Option(
        "--board",
        metavar="URL",
        help="Name this board of the run in its listing, so that indexes count by it who gave what. Default: "
        "run.toml's.",
    ),
]
Standby = Annotated[
    bool,
    typer.Option("--standby", help="Do not train: follow the run's learner from this machine, until p2prl promote."),
]


def make_learn(judges: Judges | None = None) -> Callable[..., None]:
    """Build the command. Experiments replace the learner's `judges`."""

    @takes_records
    def learn(
        run: RunFolderPath,
        options: NetworkOptions,
        lan: Lan = False,
        updates: Annotated[
            int | None,
            typer.Option("--updates", min=0, help="Updates to train; 0 for no end. Default: run.toml's."),
        ] = None,
        ranks: Annotated[
            int | None,
            typer.Option("--ranks", min=1, help="Processes of every update: 2 is --plan dp2. Default: run.toml's."),
        ] = None,
        plan: Annotated[
            str | None,
            typer.Option(
                "--plan",
                help="How processes share an update: dp2, pp2, tp2, dp2pp2; auto, the fastest. Default: run.toml's.",
            ),
        ] = None,
        replayers: Annotated[
            int | None,
            typer.Option("--replayers", min=0, help="Processes that replay groups; 0 for none. Default: run.toml's."),
        ] = None,
        changes: Changes = None,
        track: Annotated[str, typer.Option("--track", help="none, tensorboard, trackio or wandb.")] = "none",
        via: Via = None,
        sample: Annotated[
            str,
            typer.Option(
                "--sample",
                metavar="DEVICE",
                help="Also sample for the run, on this device: cpu, cuda:1. Training goes first. Default: none.",
            ),
        ] = "",
        list_at: ListAt = None,
        board: Board = None,
        standby: Standby = False,
        as_json: AsJson = False,
    ) -> None:
        """Train a run, and print its join link.

        Publishes policies, verifies groups and signs receipts. After a stop at any point it resumes at the exact step.
        """
        if standby:
            from p2prl.cli.commands.learn_standby import follow_learner

            peers = (*checked_peers(tuple(via or ())), *further_peers(options.peers))
            follow_learner(run, options, lan=lan, peers=peers, as_json=as_json)
        learn_command(
            run,
            options,
            lan=lan,
            updates=updates,
            plan=chosen_plan(ranks, plan),
            replayers=replayers,
            changes=tuple(changes or ()),
            track=track,
            via=tuple(via or ()),
            sample=sample,
            list_at=tuple(map(index_url, list_at or ())),
            board=None if board is None else board_url(board),
            as_json=as_json,
            judges=judges,
        )

    return learn


learn = make_learn()


def learn_command(
    directory: Path,
    options: NetworkOptions,
    *,
    lan: bool = False,
    updates: int | None = None,
    plan: str | None = None,
    replayers: int | None = None,
    changes: tuple[str, ...] = (),
    track: str = "none",
    via: tuple[str, ...] = (),
    sample: str = "",
    list_at: tuple[str, ...] = (),
    board: str | None = None,
    as_json: bool = False,
    judges: Judges | None = None,
) -> None:
    """Train the run in `directory`; `changes`, `updates`, `plan`, `replayers` and `board` override run.toml's, 0
    updates for no end.

    `sample` is the device of a volunteer beside the learner; empty for none. `list_at` are indexes beside run.toml's.
    """
    _follow_if_launched()
    caps = UploadCaps(upload_mbit=options.upload_mbit, monthly_gb=options.monthly_gb)
    TRANSPORTS.check(options.transport)
    check_tracker(track)
    sampler = LocalSampler(sample)
    further = (*checked_peers(via), *further_peers(options.peers))
    opened = open_folder(directory)
    refuse_standby(opened.paths)
    with_changes(opened.settings_table(), changes)  # refuses a file that is not TOML
    lock = opened.lock()
    crash_log.keep_in(directory)
    view = LiveView(quiet=as_json)
    with lock, view.shown():
        view.phase("importing torch")

        from p2prl.config.learner_disk import check_disk
        from p2prl.config.new_run import open_run
        from p2prl.config.roles import build_learner
        from p2prl.planning.rank_plan_choice import with_host_plan

        folder = open_run(directory, changes)
        folder = with_host_plan(_overridden(folder, updates=updates, plan=plan, replayers=replayers), say)
        say(check_disk(folder.manifest, folder.paths.blobs, replayers=folder.settings.learner.replayers))
        lister = _lister(folder, list_at, board)
        with tracker(track, folder) as track_metrics:
            report = _Report(view, folder, track=(track_metrics, lister.on_metrics))
            view.phase("loading the model and the journal")
            learner = build_learner(folder, on_metrics=report.on_metrics, on_notice=say, judges=judges)
            report.planned = learner.target_updates
            folder.record_planned_updates(learner.target_updates)

            link = LearnerLink(folder, partial(_show_link, folder), via=(*folder.settings.network.bootstrap, *via))

            interrupts = Interrupts(learner.stop, learner.stop, finishing="Finishing this update, then saving.")
            with interrupts.handled():
                view.phase("starting the network")
                network = _network(folder, options, caps, learner, lan=lan, peers=further)
                around = WatchedPort(link.around(network), partial(_look, report, learner, link, lister))
                listed = listed_until_end(lister, lambda: learner.finished)
                with device_failures_explained(), unrepeatable_explained(), sampler.ended_at_last(), listed:
                    learner.run(around, on_up=partial(_announce, link, learner, view, folder, sampler, lister))
            document = report.end(learner)
    if as_json:
        emit(document)
    if interrupts.count:
        say(f"Stopped at step {learner.step:,}. Resume with:  p2prl learn {shlex.quote(str(directory))}")
        sys.exit(INTERRUPTED)
    say(f"Done: {counted(learner.step, 'update')}. Measure it:  p2prl eval {shlex.quote(str(directory))}")


def checked_peers(addresses: tuple[str, ...]) -> tuple[str, ...]:
    """The addresses as they are, once each is a peer's. `ConfigError` otherwise."""
    for address in addresses:
        split_peer(address)
    return addresses


def _follow_if_launched() -> None:
    """Where torchrun started this process as another rank than 0: be that, and end with the learner."""
    launch = HostLaunch.of(os.environ)
    if launch is not None and launch.rank:
        from p2prl.config.learner_ranks import follow_learner  # here: it loads torch's collectives

        sys.exit(follow_learner(launch))


def _lister(folder: RunFolder, list_at: tuple[str, ...], board: str | None) -> RunLister:
    """Lists the run at the indexes of run.toml and of the command line."""
    named = board_url(folder.settings.network.board) if board is None else board
    urls = tuple(dict.fromkeys((*map(index_url, folder.settings.network.list), *list_at)))
    if board and not urls:
        raise ConfigError(
            f"--board {board} is to stand in the run's listing, and the run is listed nowhere",
            remedy="Name an index: --list https://…",
        )
    return RunLister(folder, urls, SystemClock(), board=named, tell=say)


def chosen_plan(ranks: int | None, plan: str | None) -> str | None:
    """The plan of ranks that the options name; None for run.toml's. `ConfigError` where they name two."""
    if ranks is None:
        return plan
    if plan is not None:
        raise ConfigError(
            f"--ranks {ranks} and --plan {plan} each name a plan", remedy="Leave one out: --ranks 2 is --plan dp2."
        )
    return f"dp{ranks}"


def _overridden(folder: RunFolder, *, updates: int | None, plan: str | None, replayers: int | None) -> RunFolder:
    """The folder with the command line's settings in place of run.toml's."""
    learner = folder.settings.learner
    if updates is not None:
        learner = replace(learner, updates=updates)
    if plan is not None:
        learner = replace(learner, parallel=replace(learner.parallel, plan=plan))
    if replayers is not None:
        learner = replace(learner, replayers=replayers)
    launch = HostLaunch.of(os.environ)
    if launch is not None and not learner.parallel.is_auto:
        launch.check(learner.parallel.name, learner.parallel.ranks)
    return replace(folder, settings=replace(folder.settings, learner=learner))


def _show_link(folder: RunFolder, link: str) -> None:
    say(f"Join link, for volunteers; also in {folder.link_file}:")
    say(link, unwrapped=True)


def _network(
    folder: RunFolder,
    options: NetworkOptions,
    caps: UploadCaps,
    learner: Learner,
    *,
    lan: bool,
    peers: tuple[str, ...],
) -> NetworkPort:
    """Start the learner's network process; `peers` are dialed beside those it knows."""
    from p2prl.config.roles import learner_network

    listens = kept_listen(folder, tuple(options.listen or ()))
    reach = options.reach(lan=lan, rereads_file=True)
    config = learner_network(folder, listens, caps, peers=peers, transport=options.transport, reach=reach)
    return NetworkHandle(config, on_start=learner.introduce)


def _announce(
    link: LearnerLink,
    learner: Learner,
    view: LiveView,
    folder: RunFolder,
    sampler: LocalSampler,
    lister: RunLister,
    addresses: tuple[str, ...],
) -> None:
    """The network is up at these addresses: show the link, and let this machine join by it."""
    text = link.begin(addresses)
    if learner.finished:
        view.phase("all updates are done", "telling the volunteers")
        return
    _show_link(folder, text)
    show_qr(text)
    for line in link.reach_warning().splitlines():
        say(line)
    say(f"Leaderboard:  p2prl board {shlex.quote(str(folder.directory))}")
    lister.begin(text)
    view.phase(WAITING, waiting_text({}, 0))
    sampler.start(link.local(addresses))


def _look(report: _Report, learner: Learner, link: LearnerLink, lister: RunLister, status: Status) -> None:
    """The network's newest state: what has come while the first update waits, and who is there."""
    report.tell_waiting(learner, link)
    lister.note(link=link.text, volunteers=dict(status.peers).get("volunteer", 0))


class _Report:
    """Sends each update's metrics to the view, the status file and the tracker."""

    def __init__(
        self, view: LiveView, folder: RunFolder, *, track: Sequence[Callable[[dict[str, object]], None]]
    ) -> None:
        self.newest: dict[str, object] = {}
        self._view = view
        self._directory, self._name = folder.directory, folder.manifest.name
        self._status_file = folder.directory / "status.json"
        self._needed = folder.settings.learner.groups_per_update
        parallel, launch = folder.settings.learner.parallel, HostLaunch.of(os.environ)
        self._ranks: dict[str, object] = {
            "plan": parallel.name,
            "ranks": parallel.ranks,
            "hosts": 1 if launch is None else launch.hosts,
            "replayers": folder.settings.learner.replayers,
        }
        self.planned = folder.settings.learner.updates
        """Step at which the run ends; 0 for no end. Set to the learner's own figure once it is built."""
        self._track = track

    def tell_waiting(self, learner: Learner, link: LearnerLink) -> None:
        """Show what has come while the first update waits for groups."""
        if link.text and not self.newest and not learner.finished:
            self._view.phase(WAITING, waiting_text(learner.counts(), self._needed))

    def on_metrics(self, metrics: dict[str, object]) -> None:
        """Show and record the metrics of an update."""
        first, planned = not self.newest, self.planned
        self.newest = dict(metrics)
        for track in self._track:
            track(metrics)
        state = {"target_updates": planned, "finished": False, **self._ranks}
        write_status(self._status_file, {"role": "learner", "run": self._name, **metrics, **state})
        self._view.update(
            lambda: update_panel(self._name, metrics, planned=planned, first=first),
            lambda: update_line(self._name, metrics, planned=planned, first=first),
        )

    def end(self, learner: Learner) -> dict[str, object]:
        """Record how the learner ended, and return it: the last version is published and measured after its update."""
        document = {"run": str(self._directory), "step": learner.step, **self.newest, **learner.status()}
        state = "finished" if learner.finished else "stopped"
        ended = {"state": state, **self._ranks, "time": SystemClock().now()}
        write_status(self._status_file, {"role": "learner", **document, **ended})
        return document
