"""Start of a worker: checks, its folder, the processes it may start later, and its confinement, before heavy imports.

Landlock binds only threads that do not run yet, and numpy starts some when it is imported. So this file and what it
imports stay light; a command imports its worker after `start_worker`.
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from p2prl import errors
from p2prl.cli import crash_log
from p2prl.cli.commands.owner_controls import (
    OwnerControls,
    PlannedLimits,
    control_programs,
    open_controls,
    plan_limits,
)
from p2prl.cli.options import WorkerOptions
from p2prl.cli.reach import further_peers, visibility_line
from p2prl.cli.views.console import say
from p2prl.config.named_link import named_link
from p2prl.config.network_options import peer_network
from p2prl.config.worker_folder import WorkerFolder, check_home, claim_worker_folder, default_home
from p2prl.confinement.role_confinement import Protection, confine_calls, confine_files
from p2prl.confinement.starter import Starter
from p2prl.controls.control_socket import ControlSocket
from p2prl.models.engines.engine_names import AUTO, DEFAULT_ENGINE, OFF_CUDA, ChosenEngine, as_asked
from p2prl.models.seeded_draw.kept_kernels import kernels_for
from p2prl.models.tokenizer.confined import tokenizer_program
from p2prl.net.listen_addresses import DEFAULT_LISTEN
from p2prl.net.process.network_config import NetworkConfig, ReachOptions, network_program
from p2prl.net.transports.hivemind.daemon_folder import DaemonFolder
from p2prl.net.transports.transport_registry import TRANSPORTS
from p2prl.protocol.join_link import JoinLink
from p2prl.protocol.kinds import Role
from p2prl.tasks.sandbox.program import scorer_program

if TYPE_CHECKING:
    from p2prl.confinement.children import Launch

_CARDS = ("/dev/nvidiactl", "/dev/dxg")

NETWORK, TOKENIZER, SCORERS = "network", "tokenizer", "scorers"

_FIND_BASE = (
    "import json, sys\n"
    "from p2prl.errors import P2PRLError\n"
    "from p2prl.models.base_model.model_folder import model_directory\n"
    "try:\n    found = {'directory': str(model_directory(sys.argv[1]))}\n"
    "except P2PRLError as error:\n"
    "    found = {'kind': type(error).__name__, 'error': str(error), 'remedy': error.remedy}\n"
    "print(json.dumps(found))"
)
"""Downloads a base model where sockets and the hub's cache are open: in a process of its own, before confinement."""


@dataclass(frozen=True, kw_only=True)
class WorkerRequest:
    """What the owner of the machine asked for. One record, because the worker's folder, its confinement, its network
    and its engine each read some of it."""

    link: str
    kind: str
    """Kind of worker folder: `seat`, `validator`, `seeder`."""
    home: Path | None
    limits: PlannedLimits
    listen: list[str] | None
    """Addresses to listen at; None for the default ones."""
    transport: str
    peers: str = ""
    """A list of further peers: a file or a web address."""
    reach: ReachOptions = field(default_factory=ReachOptions)
    base: str = ""
    engine: str = "transformers"
    device: str = "cpu"
    threads: int = 0
    """CPU threads that the engine computes with; 0 as in `use_threads`."""
    confine: bool = True


def requested(
    link: str, options: WorkerOptions, kind: str, *, lan: bool = False, share: float = 0.0, vram_gb: float = 0.0
) -> WorkerRequest:
    """The request of a command's options. `ConfigError` for a limit or a file of limits that is wrong."""
    return WorkerRequest(
        link=link,
        kind=kind,
        home=options.home,
        limits=plan_limits(
            options.home,
            share=share,
            vram_gb=vram_gb,
            ram_gb=options.ram_gb,
            upload_mbit=options.upload_mbit,
            monthly_gb=options.monthly_gb,
            disk_gb=options.disk_gb,
        ),
        listen=options.listen,
        transport=options.transport,
        peers=options.peers,
        reach=options.reach(lan=lan),
        confine=not options.no_confinement,
    )


@dataclass(frozen=True, kw_only=True)
class WorkerStart:
    """A worker that may import what it needs, and later read strangers' bytes."""

    request: WorkerRequest
    link: JoinLink
    worker: WorkerFolder
    base: Path | None
    launches: dict[str, Launch] = field(default_factory=dict)
    """Starts processes for a confined worker; empty for one that starts them itself."""
    protection: Protection
    control: ControlSocket | None = None
    """Where its owner's commands arrive."""

    def controls(self, *, computes: bool = True) -> OwnerControls:
        """The owner's controls of this worker; `computes` as in `LiveControls`."""
        return OwnerControls(
            self.worker.directory,
            self.request.limits.owner,
            self.control,
            launches=self.launches,
            computes=computes,
        )

    def network(self, role: Role, *, runs_code: bool = False, price: float | None = None) -> NetworkConfig:
        """Settings of this worker's network process; `runs_code` and `price` as in `NodeConfig`."""
        request = self.request
        config = peer_network(
            self.link,
            self.worker,
            role,
            tuple(request.listen or DEFAULT_LISTEN),
            request.limits.caps,
            memory_bytes=request.limits.machine.network_memory_bytes,
            has_base=self.base is not None,
            runs_code=runs_code,
            transport=request.transport,
            reach=request.reach,
        )
        return replace(config, node=replace(config.node, price=price))

    def seal(self) -> None:
        """Refuse what is still needed while a worker starts, and say what confines it. Before any stranger's bytes."""
        accepts = None if self.control is None else self.control.fileno()
        say(str(confine_calls(self.protection, accepts) if self.protection.asked else self.protection))


def start_worker(request: WorkerRequest) -> WorkerStart:
    """Check what the owner asked for, claim a folder, and confine this process to it."""
    link = named_link(request.link, needs_peer=request.kind != "seeder")
    TRANSPORTS.check(request.transport)
    check_home(request.home)
    link = replace(link, bootstrap=(*link.bootstrap, *further_peers(request.peers)))
    base = _base_directory(request.base)
    worker = claim_worker_folder(request.home or default_home(), kind=request.kind)
    crash_log.keep_in(worker.directory)
    is_seeder, is_public = request.kind == "seeder", request.reach.is_public
    was_listed = worker.was_listed(is_listed=is_seeder or is_public)
    say(visibility_line(is_seeder=is_seeder, is_public=is_public, on_lan=request.reach.on_lan, was_listed=was_listed))
    if not request.confine:
        control = open_controls(worker.directory)
        return WorkerStart(
            request=request,
            link=link,
            worker=worker,
            base=base,
            protection=Protection(asked=False),
            control=control,
        )
    own = worker.directory.resolve()
    is_open = _needs_programs(request.engine, request.device)
    kernels = None
    if _may_use_card(request.device) and not is_open:
        kernels = kernels_for(worker.home, "cuda" if request.device == "auto" else request.device, say)
    sockets = DaemonFolder()
    programs = {
        NETWORK: network_program(own, sockets.path),
        TOKENIZER: tokenizer_program(),
        SCORERS: scorer_program(os.getpid()),
        **control_programs(),
    }
    starter = Starter(programs, at_end=sockets.remove)
    atexit.register(starter.close)
    # After the starter's fork: a socket that it held too would seem alive when the worker is gone.
    control = open_controls(worker.directory)
    readable = () if base is None else (base, *(path.resolve() for path in base.iterdir()))
    if kernels is not None:
        readable = (*readable, kernels)
    return WorkerStart(
        request=request,
        link=link,
        worker=worker,
        base=base,
        launches={name: starter.launch(name) for name in programs},
        control=control,
        protection=confine_files(own, readable, is_open=is_open),
    )


def _needs_programs(engine: str, device: str) -> bool:
    """Whether the engine may compile programs and open sockets: vLLM does, and nobody knows of an installed one."""
    if engine != "auto":
        return engine != "transformers"
    has_card = Path("/dev/nvidiactl").exists() and (device == "auto" or device.startswith("cuda"))
    return has_card and importlib.util.find_spec("vllm") is not None


_ACCELERATORS = (*_CARDS, "/dev/kfd", "/dev/accel")


def engine_off_cards(request: WorkerRequest) -> ChosenEngine | None:
    """The engine where it is sure, without asking torch, that the worker computes on the CPU; None elsewhere.

    Such a worker can give up system calls, and read the run's manifest, before it imports torch: a card's driver opens
    a socket, and torch alone tells which card is used.
    """
    is_cpu = request.device == "cpu" or (request.device == "auto" and not any(map(os.path.exists, _ACCELERATORS)))
    if not is_cpu or sys.platform != "linux" or request.engine not in (AUTO, DEFAULT_ENGINE):
        return None
    return OFF_CUDA if request.engine == AUTO else as_asked(request.engine)


def _may_use_card(device: str) -> bool:
    """Whether the device is a CUDA card, or `auto` may find one: also where Windows has the driver."""
    return device.startswith("cuda") or (device == "auto" and any(map(os.path.exists, _CARDS)))


def _base_directory(base: str) -> Path | None:
    """Directory of the `--base` model, downloaded first when it is a hub id. `ConfigError` when there is none."""
    if not base:
        return None
    if (path := Path(base).expanduser()).is_dir():
        return path.resolve()
    say(f"finding the base model {base}")
    done = subprocess.run(
        [sys.executable, "-c", _FIND_BASE, base], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, check=False
    )
    try:
        found = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError) as error:
        raise errors.MachineError(
            f"the base model {base} could not be looked for (status {done.returncode})"
        ) from error
    if "directory" not in found:
        raise getattr(errors, found["kind"], errors.ConfigError)(found["error"], remedy=found["remedy"])
    return Path(found["directory"])
