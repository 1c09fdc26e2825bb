"""`p2prl validate`: check the work of volunteers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from p2prl.cli.commands.further_peers import reach_options
from p2prl.cli.options import (
    AsJson,
    Base,
    Device,
    DiskGb,
    Home,
    Link,
    Listen,
    MonthlyGb,
    NoConfinement,
    NoPortMapping,
    Peers,
    Public,
    RamGb,
    Threads,
    Transport,
    UploadMbit,
)

if TYPE_CHECKING:
    from p2prl.validator.verdicts import Judge


OwnLedger = Annotated[
    bool,
    typer.Option(
        "--own-ledger", help="Replay every group, and keep receipts of the good ones in a ledger signed by this key."
    ),
]


def make_validate(replace_judge: Callable[[Judge], Judge] | None = None) -> Callable[..., None]:
    """Build the command. `replace_judge` replaces the replay in experiments with dishonest validators."""

    def validate(
        link: Link,
        home: Home = None,
        device: Device = "auto",
        threads: Threads = 0,
        listen: Listen = None,
        peers: Peers = "",
        transport: Transport = "hivemind",
        public: Public = False,
        no_port_mapping: NoPortMapping = False,
        rate: Annotated[float, typer.Option("--rate", min=0.0, max=1.0, help="Share of groups to replay.")] = 0.25,
        own_ledger: OwnLedger = False,
        upload_mbit: UploadMbit = 0.0,
        monthly_gb: MonthlyGb = 0.0,
        disk_gb: DiskGb = 0.0,
        ram_gb: RamGb = 0.0,
        base: Base = "",
        run_scorer: Annotated[
            bool,
            typer.Option(
                "--run-scorer",
                help="Also check rewards of tasks scored by third-party code: run it here, in a sandbox.",
            ),
        ] = False,
        no_confinement: NoConfinement = False,
        as_json: AsJson = False,
    ) -> None:
        """Check the work of volunteers, and sign verdicts.

        Replays a random sample of groups at the policy version they declare.
        """
        from p2prl.cli.commands.owner_controls import plan_limits
        from p2prl.cli.commands.worker_start import WorkerRequest, start_worker

        request = WorkerRequest(
            link=link,
            kind="validator",
            home=home,
            limits=plan_limits(home, ram_gb=ram_gb, upload_mbit=upload_mbit, monthly_gb=monthly_gb, disk_gb=disk_gb),
            listen=listen,
            transport=transport,
            peers=peers,
            reach=reach_options(peers, public=public, no_port_mapping=no_port_mapping),
            base=base,
            device=device,
            threads=threads,
            confine=not no_confinement,
        )
        start = start_worker(request)

        from p2prl.cli.commands.validate_worker import validate_run

        validate_run(
            start,
            rate=1.0 if own_ledger else rate,
            own_ledger=own_ledger,
            run_scorer=run_scorer,
            as_json=as_json,
            replace_judge=replace_judge,
        )

    return validate


validate = make_validate()
