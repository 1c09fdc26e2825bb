"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object at the end, on standard output.")]
Home = Annotated[
    Path | None,
    typer.Option("--home", help="Where keys and work are kept. Default: $P2PRL_HOME or your data folder."),
]
Device = Annotated[str, typer.Option("--device", help="auto, cuda, mps or cpu.")]
Threads = Annotated[int, typer.Option("--threads", min=0, help="CPU threads for the model; 0 leaves it to torch.")]
Listen = Annotated[
    list[str] | None,
    typer.Option("--listen", help="Multiaddr to listen on; may be repeated. Default: any TCP port."),
]
RunDir = Annotated[Path, typer.Argument(help="A run folder made by `p2prl init`.")]
Link = Annotated[str, typer.Argument(help="A join link: p2prl://NAME@…?b=…")]
UploadMbit = Annotated[
    float, typer.Option("--upload-mbit", min=0.0, help="Uplink for weights, Mbit/s; 0 measures and uses 80 %.")
]
MonthlyGb = Annotated[
    float, typer.Option("--monthly-gb", min=0.0, help="Weights uploaded in a calendar month, GB; 0 is no limit.")
]
Base = Annotated[
    str,
    typer.Option("--base", help="The model the run started from, a directory or hub id: less is downloaded."),
]
Seed = Annotated[int, typer.Option("--seed", help="Everything random follows from it.")]
