"""`p2prl learn`: train a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from p2prl.cli.commands.further_peers import reach_options
from p2prl.cli.options import (
    AsJson,
    Lan,
    Listen,
    MonthlyGb,
    NoPortMapping,
    Peers,
    Public,
    RunFolderPath,
    Transport,
    UploadMbit,
)

if TYPE_CHECKING:
    from p2prl.config.run_settings import RunFolder
    from p2prl.net.process.bridge import NetworkPort


def make_learn(wrap_network: Callable[[NetworkPort, RunFolder], NetworkPort] | None = None) -> Callable[..., None]:
    """Build the command. `wrap_network` replaces the learner's network in experiments with delay."""

    def learn(
        run: RunFolderPath,
        listen: Listen = None,
        peers: Peers = "",
        transport: Transport = "hivemind",
        public: Public = False,
        no_port_mapping: NoPortMapping = False,
        lan: Lan = False,
        updates: Annotated[
            int | None,
            typer.Option("--updates", min=0, help="Updates to train; 0 for no end. Default: run.toml's."),
        ] = None,
        upload_mbit: UploadMbit = 0.0,
        monthly_gb: MonthlyGb = 0.0,
        track: Annotated[str, typer.Option("--track", help="none, tensorboard, trackio or wandb.")] = "none",
        as_json: AsJson = False,
    ) -> None:
        """Train a run, and print its join link.

        Publishes policies, verifies groups and signs receipts. After a stop at any point it resumes at the exact step.
        """
        from p2prl.cli.commands.learn_run import learn_command

        learn_command(
            run,
            listen=listen,
            peers=peers,
            transport=transport,
            reach=reach_options(peers, public=public, no_port_mapping=no_port_mapping, lan=lan),
            updates=updates,
            upload_mbit=upload_mbit,
            monthly_gb=monthly_gb,
            track=track,
            as_json=as_json,
            wrap_network=wrap_network,
        )

    return learn
