"""vLLM's engine inside this process: built from a run's files, stepped by hand, loaded from memory.

Nothing is downloaded, and no code or tokenizer of the run is read: vLLM gets the checked configuration and dummy
weights. Policies arrive through its weight-transfer interface (`p2prl/models/vllm_weights.py`).
"""

from __future__ import annotations

import gc
import json
import logging
import os
import random
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import psutil
import torch
from torch import Tensor

from p2prl.errors import ConfigError, MachineError
from p2prl.models.run_model import RunModel
from p2prl.models.sampler_port import Ticket
from p2prl.models.vllm_draw import ARGUMENTS, DrawArguments, Draws, runner_v1, runner_v2
from p2prl.models.weight_layout import TORCH_DTYPES

_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the draw and the weights are shared with this process
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",  # listen on this machine only
    "KMP_BLOCKTIME": "0",  # Intel's OpenMP would spin between steps
}
"""Read by vLLM from the environment alone. What the user set stays, except for the first."""

_CPU_CACHE_SHARE = 0.125
"""Share of the free memory for keys and values on a CPU, where nobody set a limit."""

_CPU_WEIGHT_COPIES = 2
"""Memory that weights take on a CPU, as a multiple of their size: embeddings are packed besides."""

_CPU_BLOCK_TOKENS = 32
"""Tokens of a cache block on a CPU: the fewest its attention kernels want. Only full blocks of a prompt are shared."""

_GPU_SHARE = 0.9
"""Share of a GPU's memory for weights, activations and cache, where nobody set a limit."""


VLLM_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""Exceptions of vLLM on a model or a machine that it cannot handle."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VllmOptions:
    """What the owner of the machine gives the engine."""

    memory_bytes: int | None = None
    """Memory for weights, activations and cache; the default is most of the GPU, or a share of the free memory."""

    sequences: int = 256
    """Most completions decoded at once: more are no faster, and their groups staler on arrival."""

    context: int | None = None
    """Tokens of the longest prompt and completion; the default is the model's context, or what fits the memory."""


def import_vllm() -> Any:
    """The library. `ConfigError` when it is not installed."""
    for key, value in _ENVIRONMENT.items():
        os.environ.setdefault(key, value)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"].upper())  # it logs before it reads the level
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of vLLM about its own code
            import vllm
    except (ImportError, RuntimeError) as error:  # RuntimeError: torchvision of another torch
        raise ConfigError(
            f"vLLM cannot be imported: {error}",
            remedy="Install the extra `vllm` (docs/volunteers.md), or join with --engine transformers.",
        ) from error
    return vllm


@dataclass(frozen=True, slots=True)
class EngineOutput:
    """New tokens of one request."""

    ticket: Ticket
    token_ids: Sequence[int]
    ended: bool


class VllmEngine:
    """One vLLM engine with one model."""

    def __init__(self, run: RunModel, draws: Draws, *, device: torch.device, dtype: str, options: VllmOptions) -> None:
        """`ConfigError` without vLLM, `MachineError` when it cannot run the model here."""
        import_vllm()
        with TemporaryDirectory(prefix="p2prl-vllm-") as directory, _own_random_state(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of vLLM about its own code
            _write_config(run, Path(directory))
            _let_modules_be_scanned()
            try:
                from vllm.v1.engine.llm_engine import LLMEngine

                config = _configuration(run, directory, draws, device=device, dtype=dtype, options=options)
                self._engine: Any = LLMEngine.from_vllm_config(config, disable_log_stats=True)
            except VLLM_ERRORS as error:
                raise _unable(error) from error
        self.sequences = options.sequences
        self.context: int = config.model_config.max_model_len
        self.cache_tokens: int = config.cache_config.kv_cache_size_tokens or self.context
        """Tokens whose keys and values fit the memory at once."""
        self._sleeps: bool = config.model_config.enable_sleep_mode

    def add(
        self,
        arguments: DrawArguments,
        prompt_ids: Sequence[int],
        *,
        salt: str,
        max_tokens: int,
        stop_ids: Iterable[int],
        urgent: bool = False,
    ) -> None:
        """Queue a request, before all others if it is urgent. Requests share cached prompts if their `salt` agrees."""
        from vllm import SamplingParams
        from vllm.inputs.engine import tokens_input
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            temperature=0.0,
            max_tokens=max_tokens,
            stop_token_ids=list(stop_ids),
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
            extra_args={ARGUMENTS: arguments},
        )
        prompt = tokens_input(list(prompt_ids), cache_salt=salt)
        self._engine.add_request(str(arguments.ticket), prompt, params, priority=-1 if urgent else 0)

    def abort(self, tickets: Iterable[Ticket]) -> None:
        """Drop requests."""
        self._engine.abort_request([str(ticket) for ticket in tickets])

    def step(self) -> list[EngineOutput]:
        """Compute one step of what is queued. `MachineError` when vLLM fails, as without memory."""
        try:
            outputs = self._engine.step()
        except VLLM_ERRORS as error:
            raise _unable(error) from error
        return [
            EngineOutput(int(output.request_id), output.outputs[0].token_ids, output.finished) for output in outputs
        ]

    def load(self, weights: Iterator[tuple[str, Tensor]]) -> None:
        """Replace all weights in place. Keys and values of requests in flight stay."""
        self._engine.collective_rpc("start_weight_update")
        self._engine.collective_rpc("update_weights", args=({"weights": weights},))
        self._engine.collective_rpc("finish_weight_update")

    def sleep(self) -> bool:
        """Free the device memory until `wake`; nothing may be in flight. False where vLLM cannot, as on a CPU."""
        if self._sleeps:
            self._engine.sleep(level=2)
        return self._sleeps

    def wake(self) -> None:
        """Take the device memory back; weights must then be loaded."""
        if self._engine.is_sleeping():
            self._engine.wake_up()

    def close(self) -> None:
        """Free everything."""
        engine, self._engine = self._engine, None
        engine.engine_core.shutdown()
        del engine
        gc.collect()


def _unable(error: Exception) -> MachineError:
    return MachineError(
        f"vLLM cannot run this model here: {str(error)[:300]}",
        remedy="Give it more memory, or join with --engine transformers.",
    )


def _write_config(run: RunModel, directory: Path) -> None:
    """The run's configuration with the name of its architecture, by which vLLM finds its own implementation."""
    config = json.loads(run.files["config.json"])
    config["architectures"] = [type(run.skeleton).__name__]
    (directory / "config.json").write_text(json.dumps(config))


def _configuration(
    run: RunModel, directory: str, draws: Draws, *, device: torch.device, dtype: str, options: VllmOptions
) -> Any:
    from vllm.config import WeightTransferConfig
    from vllm.engine.arg_utils import EngineArgs

    from p2prl.models.vllm_weights import register_backend

    settings: dict[str, Any] = {
        "model": directory,
        "skip_tokenizer_init": True,
        "trust_remote_code": False,
        "generation_config": "vllm",  # none: stop tokens come with each request
        "load_format": "dummy",
        "dtype": dtype,
        "max_model_len": options.context or -1,  # -1: the model's own, or what fits the memory
        "max_num_seqs": options.sequences + 1,  # one for the known answer
        "enable_prefix_caching": True,  # the completions of a group share their prompt
        "scheduling_policy": "priority",
        "weight_transfer_config": WeightTransferConfig(backend=register_backend()),
        "disable_log_stats": True,
    }
    if device.type == "cpu":
        settings |= {
            "kv_cache_memory_bytes": _cpu_cache_bytes(run.layout.parameters * TORCH_DTYPES[dtype].itemsize, options),
            "block_size": _CPU_BLOCK_TOKENS,
            "enforce_eager": True,  # compiling takes a minute and gains little
        }
    elif device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        share = options.memory_bytes / total if options.memory_bytes else _GPU_SHARE
        settings |= {
            "gpu_memory_utilization": min(_GPU_SHARE, share),
            "enable_sleep_mode": True,
            "hf_overrides": {"head_dtype": "float32"},  # costs nothing there, and halves the noise against a replay
        }
    else:
        raise MachineError(f"vLLM does not run on {device.type}", remedy="Join with --engine transformers.")
    config = EngineArgs(**settings).create_engine_config()
    config.model_config.logits_processors = [(runner_v2 if config.use_v2_model_runner else runner_v1)(draws)]
    return config


def _cpu_cache_bytes(weight_bytes: int, options: VllmOptions) -> int:
    if options.memory_bytes is None:
        return int(psutil.virtual_memory().available * _CPU_CACHE_SHARE)
    return max(1, options.memory_bytes - _CPU_WEIGHT_COPIES * weight_bytes)


def _let_modules_be_scanned() -> None:
    """Give llvmlite's library, once it is imported, a `__dict__` that is one.

    On a CPU vLLM reads that of every object in every module, and llvmlite answers any name with a C function.
    """
    ffi = sys.modules.get("llvmlite.binding.ffi")
    if ffi is not None:
        ffi.lib._fntab.setdefault("__dict__", {})


@contextmanager
def _own_random_state() -> Iterator[None]:
    """Undo that vLLM seeds every generator of the process with a constant."""
    states = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])
