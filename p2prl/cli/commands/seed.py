"""`p2prl seed`: upload a run's weights to its volunteers."""

from __future__ import annotations

from p2prl.cli.commands.further_peers import reach_options
from p2prl.cli.options import (
    AsJson,
    DiskGb,
    Home,
    Lan,
    Link,
    Listen,
    MonthlyGb,
    NoConfinement,
    NoPortMapping,
    Peers,
    Public,
    RamGb,
    Transport,
    UploadMbit,
)


def seed(
    link: Link,
    home: Home = None,
    listen: Listen = None,
    peers: Peers = "",
    transport: Transport = "hivemind",
    public: Public = False,
    no_port_mapping: NoPortMapping = False,
    lan: Lan = False,
    upload_mbit: UploadMbit = 0.0,
    monthly_gb: MonthlyGb = 0.0,
    disk_gb: DiskGb = 0.0,
    ram_gb: RamGb = 0.0,
    no_confinement: NoConfinement = False,
    as_json: AsJson = False,
) -> None:
    """Upload a run's weights to its volunteers, without a GPU.

    Needs no torch and little memory: chunks go from disk to peers.
    """
    from p2prl.cli.commands.owner_controls import plan_limits
    from p2prl.cli.commands.worker_start import WorkerRequest, start_worker

    request = WorkerRequest(
        link=link,
        kind="seeder",
        home=home,
        limits=plan_limits(home, ram_gb=ram_gb, upload_mbit=upload_mbit, monthly_gb=monthly_gb, disk_gb=disk_gb),
        listen=listen,
        transport=transport,
        peers=peers,
        reach=reach_options(peers, public=public, no_port_mapping=no_port_mapping, lan=lan),
        confine=not no_confinement,
    )
    start = start_worker(request)

    from p2prl.cli.commands.seed_worker import seed_run

    seed_run(start, as_json=as_json)
