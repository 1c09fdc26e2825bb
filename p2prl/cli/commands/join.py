"""`p2prl join`: lend this machine to a run. `join_worker` is imported once this process is confined."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from p2prl.cli.commands.join_several_devices import given_options, one_device
from p2prl.cli.commands.runs import Indexes
from p2prl.cli.commands.worker_start import requested, start_worker
from p2prl.cli.options import AsJson, Base, Engine, Lan, Threads, WorkerOptions, takes_records
from p2prl.errors import ConfigError
from p2prl.protocol.limits import MAX_PRICE

if TYPE_CHECKING:
    from p2prl.models.sampler_port import Sampler
    from p2prl.net.process.bridge import NetworkPort

    WrapSampler = Callable[[Sampler], Sampler] | None
    WrapNetwork = Callable[[NetworkPort], NetworkPort] | None


Devices = Annotated[
    str,
    typer.Option(
        "--device",
        help="auto, cuda:1, mps, cpu, or part of a card's name; cuda:0,cuda:1, or all cards: a worker for each.",
    ),
]
Slots = Annotated[
    int, typer.Option("--slots", min=0, help="Slots sampled at a time; 0 chooses by measuring this machine.")
]
VramGb = Annotated[
    float,
    typer.Option("--vram-gb", min=0.0, help="Most memory of the device for weights and samples, GB; 0: what is free."),
]
Share = Annotated[
    float,
    typer.Option(
        "--share", min=0.0, max=1.0, help="Most of the time that it computes, 0.05 to 1; 0 leaves it to limits."
    ),
]
StandbyOk = Annotated[
    bool,
    typer.Option("--standby-ok", help="Rest, at no credit, while the run has enough groups without this machine."),
]
Price = Annotated[
    float,
    typer.Option(
        "--price",
        min=0.0,
        max=MAX_PRICE,
        help="What an hour of this machine costs you; the dearest stand by first."
        " Implies --standby-ok; 0: none, counted as 1.",
    ),
]
MirrorLedger = Annotated[
    bool,
    typer.Option("--mirror-ledger", help="Keep a copy of the run's ledger and serve it, up to 256 MB of disk."),
]
Events = Annotated[
    bool, typer.Option("--events", help="Print a line of JSON for each event, on standard output; --json ends them.")
]


AnyLink = Annotated[
    str, typer.Argument(metavar="LINK", help="A join link in quotes: 'p2prl://NAME@…?b=…'; with --any the first run.")
]
AnyRun = Annotated[
    bool, typer.Option("--any", help="Serve the listed run that needs this machine most, and go on to the next.")
]
Prefer = Annotated[
    str,
    typer.Option(
        "--prefer", metavar="WORDS", help="With --any: small, or words of a run's name, goal or model. Default: none."
    ),
]
Only = Annotated[
    str,
    typer.Option(
        "--only",
        metavar="OWNERS",
        help="With --any: ids of owners whose runs alone are served. Default: those you allow.",
    ),
]


def make_join(wrap_sampler: WrapSampler = None, wrap_network: WrapNetwork = None) -> Callable[..., None]:
    """Build the command. Experiments with dishonest volunteers wrap the sampler or the network."""

    @takes_records
    def join(
        context: typer.Context,
        options: WorkerOptions,
        link: AnyLink = "",
        any_run: AnyRun = False,
        prefer: Prefer = "",
        only: Only = "",
        index: Indexes = None,
        device: Devices = "auto",
        engine: Engine = "auto",
        threads: Threads = 0,
        lan: Lan = False,
        slots: Slots = 0,
        vram_gb: VramGb = 0.0,
        share: Share = 0.0,
        base: Base = "",
        standby_ok: StandbyOk = False,
        price: Price = 0.0,
        mirror_ledger: MirrorLedger = False,
        events: Events = False,
        as_json: AsJson = False,
    ) -> None:
        """Lend this machine to a run, until Ctrl-C or its end.

        Downloads the policy, samples, signs and delivers groups, and uploads weights to other volunteers.
        """
        if any_run:
            raise typer.Exit(join_any(context, link, options, prefer, only, index, events=events, as_json=as_json))
        if not link:
            raise typer.BadParameter("a join link is missing. Or --any takes the run in most need.", param_hint="LINK")
        if prefer or only or index:
            raise ConfigError(
                "--prefer, --only and --index choose among runs, and a link names one",
                remedy="Give a join link alone, or --any for the run in most need.",
            )
        wanted = requested(link, options, "seat", lan=lan, share=share, vram_gb=vram_gb)
        device = one_device(context, device, home=options.home, events=events, as_json=as_json)
        request = replace(wanted, base=base, engine=engine, device=device, threads=threads)
        start = start_worker(request)
        from p2prl.cli.commands.join_worker import join_run  # after the confinement

        join_run(
            start,
            slots=slots,
            price=price or (1.0 if standby_ok else None),
            mirrors=mirror_ledger,
            events=events,
            as_json=as_json,
            wrap_sampler=wrap_sampler,
            wrap_network=wrap_network,
        )

    return join


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def join_any(
    context: typer.Context,
    link: str,
    options: WorkerOptions,
    prefer: str,
    only: str,
    index: list[str] | None,
    *,
    events: bool,
    as_json: bool,
) -> int:
    """Serve listed runs one after another; returns the exit code."""
    from p2prl.cli.commands.join_any import AnyRequest, AnyRun  # a process that starts workers, and never becomes one
    from p2prl.config.named_link import named_link
    from p2prl.config.run_lists import asked_indexes
    from p2prl.config.worker_folder import default_home

    home = options.home or default_home()
    request = AnyRequest(
        home=home,
        urls=asked_indexes(home, index),
        limits=requested("", options, "seat").limits,
        arguments=given_options(context, 1, without=_OF_ANY),
        prefer=_words(prefer),
        only=_words(only),
        first_link=str(named_link(link)) if link else "",
        events=events,
        as_json=as_json,
    )
    return AnyRun(request).run()


_OF_ANY = ("link", "any_run", "prefer", "only", "index", "events", "as_json")
"""Options that are for the command itself, and not for the workers that it starts."""


join = make_join()
