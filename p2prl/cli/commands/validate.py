"""`p2prl validate`: check the work of volunteers. `validate_worker` is imported once this process is confined."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from p2prl.cli.commands.join_several_devices import named_device
from p2prl.cli.commands.worker_start import requested, start_worker
from p2prl.cli.options import AsJson, Base, Device, Lan, Link, Threads, WorkerOptions, takes_records
from p2prl.validator.replay_queue import AUDITED_SHARE

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

    @takes_records
    def validate(
        link: Link,
        options: WorkerOptions,
        device: Device = "auto",
        threads: Threads = 0,
        rate: Annotated[
            float, typer.Option("--rate", min=0.0, max=1.0, help="Share of groups to replay.")
        ] = AUDITED_SHARE,
        own_ledger: OwnLedger = False,
        base: Base = "",
        lan: Lan = False,
        run_scorer: Annotated[
            bool,
            typer.Option(
                "--run-scorer",
                help="Also check rewards of tasks scored by third-party code: run it here, in a sandbox.",
            ),
        ] = False,
        as_json: AsJson = False,
    ) -> None:
        """Check the work of volunteers, and sign verdicts.

        Replays a random sample of groups at the policy version they declare.
        """
        wanted = requested(link, options, "validator", lan=lan)
        request = replace(wanted, base=base, device=named_device(device), threads=threads)
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
