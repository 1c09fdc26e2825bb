"""`p2prl doctor`: check this machine, repair what is safe to repair, and write a report to ask for help with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from p2prl.cli.options import AsJson, Device, Home

OptionalLink = Annotated[
    str, typer.Argument(metavar="LINK", help="A join link, to dial its peers too. Default: none, and nobody is dialed.")
]
Fix = Annotated[bool, typer.Option("--fix", help="Repair what is safe: close keys and the home to other users.")]
Bundle = Annotated[
    Path | None,
    typer.Option("--bundle", help="Show a report without keys, addresses or names, then write it here. Default: none."),
]
Yes = Annotated[bool, typer.Option("--yes", help="Write the report without asking.")]
SkipDevice = Annotated[
    bool, typer.Option("--skip-device", help="Leave out torch and the self-test of the device, which take seconds.")
]

Daemon = Annotated[
    Path | None,
    typer.Option(
        "--p2pd", help="Test this network daemon too: three of it on this machine, a link, a circuit. Default: none."
    ),
]


def doctor(
    link: OptionalLink = "",
    fix: Fix = False,
    bundle: Bundle = None,
    yes: Yes = False,
    skip_device: SkipDevice = False,
    p2pd: Daemon = None,
    device: Device = "auto",
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Check this machine: version, clock, disk, memory, keys, driver, device and network. Exit code 4 for a failure."""
    from p2prl.cli.commands.doctor_run import DoctorRequest, run_doctor

    run_doctor(
        DoctorRequest(
            link=link, fix=fix, bundle=bundle, yes=yes, tests_device=not skip_device, device=device, p2pd=p2pd
        ),
        home=home,
        as_json=as_json,
    )
