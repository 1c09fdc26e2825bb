"""`p2prl seed`: upload a run's weights to its volunteers."""

from __future__ import annotations

from p2prl.cli.options import AsJson, DiskGb, Home, Link, Listen, MonthlyGb, RamGb, Transport, UploadMbit


def seed(
    link: Link,
    home: Home = None,
    listen: Listen = None,
    transport: Transport = "hivemind",
    upload_mbit: UploadMbit = 0.0,
    monthly_gb: MonthlyGb = 0.0,
    disk_gb: DiskGb = 0.0,
    ram_gb: RamGb = 0.0,
    as_json: AsJson = False,
) -> None:
    """Upload a run's weights to its volunteers, without a GPU.

    Needs no torch and little memory: chunks go from disk to peers.
    """
    from p2prl.cli.commands.seed_worker import seed_run
    from p2prl.config.machine_limits import MachineLimits

    seed_run(
        link,
        home=home,
        listen=listen,
        transport=transport,
        upload_mbit=upload_mbit,
        monthly_gb=monthly_gb,
        limits=MachineLimits(disk_gb=disk_gb, ram_gb=ram_gb),
        as_json=as_json,
    )
