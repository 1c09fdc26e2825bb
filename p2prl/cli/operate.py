"""`p2prl init` and `p2prl learn`. What needs torch is imported once the arguments are known to be good."""

from __future__ import annotations

import random
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from p2prl.bench.staleness.delay_laws import DelayLaw, parse_delay
from p2prl.cli import crashes
from p2prl.cli.console import Interrupts, View, emit, progress, say
from p2prl.cli.reach import reach_warning, worth_sharing
from p2prl.cli.tracking import tracker
from p2prl.config.network_options import UploadCaps
from p2prl.config.presets import preset_by_name
from p2prl.config.run_folder import open_folder, refuse_folder_in_use
from p2prl.config.worker_folder import write_status
from p2prl.errors import ConfigError
from p2prl.net.process.bridge import NetworkPort
from p2prl.net.process.handle import NetworkHandle
from p2prl.testing.delayed_port import DelayedPort

if TYPE_CHECKING:
    from p2prl.config.run_settings import RunFolder

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def init_command(
    name: str,
    *,
    preset: str,
    model: str | None,
    task: str | None,
    goal: str | None,
    staleness: int | None,
    publish_every: int | None,
    group_size: int,
    temperature: float,
    max_new_tokens: int | None,
    reward: str,
    dtype: str | None,
    compute_dtype: str | None,
    root: Path,
    seed: int,
    as_json: bool,
) -> None:
    """Make a run folder."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} cannot name a run", remedy="Use letters, digits, dots, dashes; 64 at most.")
    chosen = preset_by_name(preset, task=task)
    refuse_folder_in_use(root / name)

    from p2prl.config.run_settings import describe, init_run
    from p2prl.learner.run_plan import RunPlan
    from p2prl.models.device import use_threads

    plan = RunPlan(
        name=name,
        goal=goal or chosen.goal,
        task=chosen.task,
        model=model,
        group_size=group_size,
        temperature=temperature,
        max_new_tokens=max_new_tokens or chosen.max_new_tokens,
        staleness_bound=chosen.staleness_bound if staleness is None else staleness,
        publish_every=publish_every or chosen.publish_every,
        reward=reward,
        dtype=dtype or chosen.dtype,
        # Whoever chooses how the weights travel computes in that type, unless told otherwise.
        compute_dtype=compute_dtype or ("" if dtype else chosen.compute_dtype),
        seed=seed,
    )
    if model is None:
        use_threads(1)  # a model this small gains nothing from threads that wait for each other on a busy machine
    with progress("making the run", quiet=as_json) as tell:
        folder = init_run(root / name, plan, settings=chosen.settings_text(), on_progress=tell)
    say(f"Made {folder.directory}. Start its learner:  p2prl learn {folder.directory}")
    if as_json:
        emit({"run": str(folder.directory), "digest": folder.run.hex(), **describe(folder.manifest)})


def learn_command(
    directory: Path,
    *,
    listen: list[str] | None,
    updates: int | None,
    upload_mbit: float,
    monthly_gb: float,
    track: str,
    delay: str,
    as_json: bool,
) -> None:
    """Train a run until its updates are done or it is interrupted.

    `delay`, for experiments, is a law of `p2prl.bench.staleness.delay_laws`: groups then arrive late by so many
    updates' traffic.
    """
    caps = UploadCaps(upload_mbit=upload_mbit, monthly_gb=monthly_gb)
    law = parse_delay(delay) if delay else None  # what can be refused is refused before torch takes its seconds
    lock = open_folder(directory).lock()
    crashes.keep_in(directory)

    from p2prl.config.roles import build_learner, learner_network
    from p2prl.config.run_settings import open_run

    folder = open_run(directory)
    if updates is not None:
        settings = replace(folder.settings, learner=replace(folder.settings.learner, updates=updates))
        folder = replace(folder, settings=settings)
    view = View(quiet=as_json)
    newest: dict[str, Any] = {}
    planned = folder.settings.learner.updates
    with tracker(track, folder) as track_metrics, lock:

        def on_metrics(metrics: dict[str, Any]) -> None:
            first = not newest  # its interval counts the wait for volunteers
            newest.clear()  # not every update has every key
            newest.update(metrics)
            track_metrics(metrics)
            write_status(directory / "status.json", {"role": "learner", "run": folder.manifest.name, **metrics})
            line = _line(folder.manifest.name, metrics, planned=planned, first=first)
            view.update(lambda: line, lambda: line)

        with progress(f"learner of {folder.manifest.name}", quiet=as_json) as tell:
            tell("loading the model and the journal", 0.0)
            learner = build_learner(folder, on_metrics=on_metrics, on_notice=say)
        folder.record_planned_updates(planned)

        def on_up(addresses: tuple[str, ...]) -> None:
            _announce(folder, addresses)
            if not planned or learner.step < planned:
                say("waiting for volunteers: give them the link")

        interrupts = Interrupts(learner.stop, learner.stop, finishing="Finishing this update, then saving.")
        with view.shown(), interrupts.handled():
            config = learner_network(folder, kept_listen(folder, tuple(listen or ())), caps)
            network: NetworkPort = NetworkHandle(config, on_start=learner.introduce)
            if law is not None:
                network = _late(network, law, groups_per_update=folder.settings.learner.groups_per_update)
            learner.run(network, on_up=on_up)
        document = {"run": str(directory), "step": learner.step, **newest}
        write_status(directory / "status.json", {"role": "learner", "state": "stopped", **document})
    if as_json:
        emit(document)
    if interrupts.count:
        say(f"Stopped at step {learner.step}. Go on with:  p2prl learn {directory}")
        sys.exit(130)
    say(f"Done: {learner.step} updates. Measure it:  p2prl eval {directory}")


def _late(network: NetworkPort, law: DelayLaw, *, groups_per_update: int) -> NetworkPort:
    dice = random.Random(law.text)  # noqa: S311 - an experiment's dice
    return DelayedPort(network, lambda: groups_per_update * law.draw(dice.random(), law.longest))


def kept_listen(folder: RunFolder, listen: tuple[str, ...]) -> tuple[str, ...]:
    """`listen`, or else the addresses of `run.toml`, with the port the learner had before: links stay good."""
    port_file = folder.directory / "port"
    port = port_file.read_text().strip() if port_file.exists() else ""
    wanted = listen or folder.settings.network.listen
    return tuple(address.replace("/tcp/0", f"/tcp/{port}") for address in wanted) if port.isdigit() else wanted


def _announce(folder: RunFolder, addresses: tuple[str, ...]) -> None:
    ports = [parts[4] for address in addresses if (parts := address.split("/"))[3:4] == ["tcp"]]
    if ports:
        (folder.directory / "port").write_text(ports[0] + "\n")
    shared = worth_sharing(addresses)
    link = folder.link(shared)
    new = folder.link_file.with_suffix(".new")
    new.write_text(f"{link}\n")
    new.rename(folder.link_file)
    say(f"join link  {link}", whole=True)
    if warning := reach_warning(shared):
        say(f"           {warning}")
    say(f"board      p2prl board {folder.directory}")


def _line(name: str, metrics: dict[str, Any], *, planned: int, first: bool) -> str:
    step = f"{metrics['step']:.0f}" + (f"/{planned}" if planned else "")
    pace = "" if first else f"  {metrics['seconds']:.2f} s/update"
    return (
        f"{name}  step {step}  reward {metrics['reward']:.3f}  loss {metrics['loss']:+.4f}"
        f"  stale p50/max {metrics['staleness_p50']:.0f}/{metrics['staleness_max']:.0f}"
        f"  from {metrics['peers']} {'peer' if metrics['peers'] == 1 else 'peers'}{pace}"
    )
