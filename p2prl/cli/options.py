"""Options that several commands share, alone and in records.

A record is a dataclass whose fields are annotated as typer's options. A command takes it as one parameter, and its help
page shows each field: so shared options are declared once, and a command with many hands them on as one value.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

if TYPE_CHECKING:
    from p2prl.net.process.network_config import ReachOptions


def takes_records(command: Callable[..., None]) -> Callable[..., None]:
    """The command as typer reads it: each parameter whose type is a dataclass gives way to the dataclass's fields."""
    signature = inspect.signature(command, eval_str=True)
    records: dict[str, type[Any]] = {
        each.name: each.annotation
        for each in signature.parameters.values()
        if isinstance(each.annotation, type) and is_dataclass(each.annotation)
    }
    parameters: list[inspect.Parameter] = []
    for each in signature.parameters.values():
        if each.name not in records:
            parameters.append(each.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        types = get_type_hints(records[each.name], include_extras=True)
        parameters += [_parameter(field, types[field.name]) for field in fields(records[each.name])]

    @functools.wraps(command)
    def called(**values: Any) -> None:
        made = {
            name: record(**{field.name: values.pop(field.name) for field in fields(record)})
            for name, record in records.items()
        }
        command(**values, **made)

    vars(called)["__signature__"] = signature.replace(parameters=parameters)
    called.__annotations__ = {each.name: each.annotation for each in parameters}
    return called


def _parameter(field: Field[Any], annotation: object) -> inspect.Parameter:
    default = inspect.Parameter.empty if field.default is MISSING else field.default
    if field.default_factory is not MISSING:
        default = field.default_factory()
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _checked_home(home: Path | None) -> Path | None:
    from p2prl.config.worker_folder import check_home_name  # here: --help needs none of it

    return check_home_name(home)


def _checked_listen(listen: list[str] | None) -> list[str] | None:
    from p2prl.net.transports.multiaddrs import to_bytes

    for address in listen or ():
        to_bytes(address)  # refuses before a model is loaded what the transport would refuse after it
    return listen


AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object at the end, on standard output.")]
Home = Annotated[
    Path | None,
    typer.Option(
        "--home",
        help="Folder of keys and unfinished work. Default: $P2PRL_HOME or your data folder.",
        callback=_checked_home,
    ),
]
Device = Annotated[str, typer.Option("--device", help="auto, cuda, cuda:1, mps, cpu, or a part of a card's name.")]
BenchDevice = Annotated[str, typer.Option("--device", help="A torch device, or auto.")]
BatchGroups = Annotated[int, typer.Option("--groups", help="Groups of the batch.")]
BatchCompletions = Annotated[int, typer.Option("--completions", help="Completions of a group.")]
BatchTokens = Annotated[int, typer.Option("--tokens", help="Tokens of the longest completion.")]
MicroBatchTokens = Annotated[
    int, typer.Option("--micro-batch-tokens", help="Most tokens of a part of the batch; 0 takes a quarter of it.")
]
Checkpointing = Annotated[bool, typer.Option("--checkpointing", help="Keep only the inputs of layers.")]
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
    typer.Option(
        "--listen",
        help="Multiaddr to listen on; may be repeated. Default: any TCP port, IPv4 and IPv6.",
        callback=_checked_listen,
    ),
]
RunFolderPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder created by `p2prl init`: runs/NAME.")]
Link = Annotated[str, typer.Argument(metavar="LINK", help="A join link in quotes: 'p2prl://NAME@…?b=…'")]
Lan = Annotated[
    bool, typer.Option("--lan", help="Announce this machine on the local network, and try others of the run there.")
]
NoConfinement = Annotated[
    bool, typer.Option("--no-confinement", help="Do not confine this process to its own folder; prints a warning.")
]
Seed = Annotated[int, typer.Option("--seed", help="Seed of all random choices.")]
Base = Annotated[
    str,
    typer.Option(
        "--base",
        help="The model the run started from, a directory or hub id: saves downloading it. Default: none.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    """How a peer is reached, whom it asks first, and how much it uploads."""

    listen: Listen = None
    peers: Annotated[
        str,
        typer.Option("--peers", metavar="FILE|URL", help="List of further peers, an address a line. Default: none."),
    ] = ""
    transport: Annotated[
        str,
        typer.Option("--transport", help="hivemind, libp2p (extra `libp2p`), or one from an installed package."),
    ] = "hivemind"
    public: Annotated[
        bool,
        typer.Option(
            "--public",
            help="Others can dial this machine: relay for those behind routers. "
            "Join links may name a worker's address.",
        ),
    ] = False
    no_port_mapping: Annotated[
        bool, typer.Option("--no-port-mapping", help="Do not ask the home router for a port (UPnP, NAT-PMP).")
    ] = False
    upload_mbit: Annotated[
        float, typer.Option("--upload-mbit", min=0.0, help="Uplink for weights, Mbit/s; 0 measures it and uses 80 %.")
    ] = 0.0
    monthly_gb: Annotated[
        float,
        typer.Option("--monthly-gb", min=0.0, help="Uploads in a month, GB; weights stop past it; 0 is no limit."),
    ] = 0.0

    def reach(self, *, lan: bool = False, rereads_file: bool = False) -> ReachOptions:
        """The options for the network process, which reads the list of `--peers` again when that is on the web, or with
        `rereads_file` a file: a confined process opens none."""
        from p2prl.net.process.network_config import ReachOptions
        from p2prl.net.process.peer_list import is_on_web

        reread = self.peers if is_on_web(self.peers) or rereads_file else ""
        return ReachOptions(is_public=self.public, maps_ports=not self.no_port_mapping, on_lan=lan, peers_list=reread)


@dataclass(frozen=True, kw_only=True)
class WorkerOptions(NetworkOptions):
    """What every worker of a run is asked: its folder, its network and its bounds."""

    home: Home = None
    disk_gb: Annotated[
        float,
        typer.Option("--disk-gb", min=0.0, help="Most disk for everything the run stores here, GB; 0: what it needs."),
    ] = 0.0
    ram_gb: Annotated[
        float,
        typer.Option("--ram-gb", min=0.0, help="Most memory of all its processes together, GB; 0: what is available."),
    ] = 0.0
    no_confinement: NoConfinement = False
