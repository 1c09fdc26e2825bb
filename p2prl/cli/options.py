"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def _checked_home(home: Path | None) -> Path | None:
    from p2prl.config.worker_folder import check_home_name  # here: --help needs none of it

    return check_home_name(home)


AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object at the end, on standard output.")]
Home = Annotated[
    Path | None,
    typer.Option(
        "--home",
        help="Folder of keys and unfinished work. Default: $P2PRL_HOME or your data folder.",
        callback=_checked_home,
    ),
]
Device = Annotated[str, typer.Option("--device", help="auto, cuda, cuda:1, mps or cpu. auto takes the fastest.")]
BenchDevice = Annotated[str, typer.Option("--device", help="A torch device, or auto.")]
Engine = Annotated[
    str,
    typer.Option(
        "--engine",
        help="auto, transformers, vllm (extra `vllm`), or one from an installed package. auto takes vLLM on CUDA.",
    ),
]
Threads = Annotated[
    int, typer.Option("--threads", min=0, max=1024, help="CPU threads for the model; 0 leaves it to torch.")
]
Listen = Annotated[
    list[str] | None,
    typer.Option("--listen", help="Multiaddr to listen on; may be repeated. Default: any TCP port, IPv4 and IPv6."),
]
RunFolderPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder created by `p2prl init`: runs/NAME.")]
Link = Annotated[str, typer.Argument(metavar="LINK", help="A join link in quotes: 'p2prl://NAME@…?b=…'")]
Transport = Annotated[
    str,
    typer.Option("--transport", help="hivemind, libp2p (extra `libp2p`), or one from an installed package."),
]
UploadMbit = Annotated[
    float, typer.Option("--upload-mbit", min=0.0, help="Uplink for weights, Mbit/s; 0 measures it and uses 80 %.")
]
Public = Annotated[
    bool,
    typer.Option(
        "--public",
        help="Others can dial this machine: relay for those behind routers. Join links may name a worker's address.",
    ),
]
NoPortMapping = Annotated[
    bool, typer.Option("--no-port-mapping", help="Do not ask the home router for a port (UPnP, NAT-PMP).")
]
Lan = Annotated[
    bool, typer.Option("--lan", help="Announce this machine on the local network, and try others of the run there.")
]
MonthlyGb = Annotated[
    float, typer.Option("--monthly-gb", min=0.0, help="Uploads in a month, GB; weights stop past it; 0 is no limit.")
]
DiskGb = Annotated[
    float,
    typer.Option("--disk-gb", min=0.0, help="Most disk for everything the run stores here, GB; 0: what it needs."),
]
RamGb = Annotated[
    float,
    typer.Option("--ram-gb", min=0.0, help="Most memory of all its processes together, GB; 0: what is available."),
]
Base = Annotated[
    str,
    typer.Option(
        "--base",
        help="The model the run started from, a directory or hub id: saves downloading it. Default: none.",
    ),
]
Peers = Annotated[
    str,
    typer.Option("--peers", metavar="FILE|URL", help="List of further peers, an address a line. Default: none."),
]
NoConfinement = Annotated[
    bool, typer.Option("--no-confinement", help="Do not confine this process to its own folder; prints a warning.")
]
Seed = Annotated[int, typer.Option("--seed", help="Seed of all random choices.")]
