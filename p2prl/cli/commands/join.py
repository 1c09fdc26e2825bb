"""`p2prl join`: lend this machine to a run. `join_worker` is imported once this process is confined."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from p2prl.cli.commands.join_devices import one_device
from p2prl.cli.commands.worker_start import requested, start_worker
from p2prl.cli.options import AsJson, Base, Engine, Lan, Link, Threads, WorkerOptions, takes_records
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
        help="auto, cuda, cuda:1, mps or cpu. auto takes the fastest. cuda:0,cuda:1, or all cards: a worker for each.",
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


def make_join(wrap_sampler: WrapSampler = None, wrap_network: WrapNetwork = None) -> Callable[..., None]:
    """Build the command. Experiments with dishonest volunteers wrap the sampler or the network."""

    @takes_records
    def join(
        context: typer.Context,
        link: Link,
        options: WorkerOptions,
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


join = make_join()
