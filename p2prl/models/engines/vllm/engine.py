"""vLLM's engine inside this process: built from a run's files, stepped by hand, loaded from memory.

Nothing is downloaded, and no code or tokenizer of the run is read: vLLM gets the checked configuration and dummy
weights. Policies arrive through its weight-transfer interface (`p2prl/models/engines/vllm/weight_transfer.py`).
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor

from p2prl.errors import MachineError
from p2prl.models.engines.start_stages import tell_stage
from p2prl.models.engines.vllm.draw import ARGUMENTS, DrawArguments, Draws
from p2prl.models.engines.vllm.library import (
    VLLM_ERRORS,
    bars_as_stages,
    import_vllm,
    let_modules_be_scanned,
    own_random_state,
)
from p2prl.models.engines.vllm.processors import runner_v1, runner_v2
from p2prl.models.run_model import RunModel
from p2prl.models.sampler_port import Ticket
from p2prl.models.weights.layout import TORCH_DTYPES
from p2prl.protocol.digests import chunk_digest

_CPU_CACHE_SHARE = 0.125
"""Share of the free memory for keys and values on a CPU, where nobody set a limit."""

_CPU_WEIGHT_COPIES = 2
"""Memory that weights take on a CPU, as a multiple of their size: embeddings are packed besides."""

_CPU_BLOCK_TOKENS = 32
"""Tokens of a cache block on a CPU: the fewest its attention kernels want. Only full blocks of a prompt are shared."""

_GPU_SHARE = 0.9
"""Largest share of a GPU's free memory for weights, activations and cache."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VllmOptions:
    """What the owner of the machine gives the engine."""

    memory_bytes: int | None = None
    """Memory for weights, activations and cache; the default is most of the GPU, or a share of the free memory."""

    sequences: int = 256
    """Most completions decoded at once: more are no faster, and their groups staler on arrival."""

    context: int | None = None
    """Tokens of the longest prompt and completion; the default is the model's context, or what fits the memory."""


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
        tell_stage("vLLM: reading its code")
        import_vllm()
        with own_random_state(), bars_as_stages(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of vLLM about its own code
            try:
                from vllm.v1.engine.llm_engine import LLMEngine

                config = _configuration(run, draws, device=device, dtype=dtype, options=options)
                let_modules_be_scanned()
                tell_stage("vLLM: compiling the model and measuring its memory; a minute or more the first time")
                self._engine: Any = LLMEngine.from_vllm_config(config, disable_log_stats=True)
            except VLLM_ERRORS as error:
                raise _unable(error) from error
        self.sequences = options.sequences
        self.context: int = config.model_config.max_model_len
        self.cache_tokens: int = config.cache_config.kv_cache_size_tokens or self.context
        """Tokens whose keys and values fit the memory at once."""
        self._sleeps: bool = config.model_config.enable_sleep_mode
        self._numbers = itertools.count()
        self._tickets: dict[str, Ticket] = {}
        """Of the requests in flight, by vLLM's names for them."""

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
        """Queue a request, before all others if it is urgent. Requests share cached prompts if their `salt` agrees.

        `MachineError` when vLLM does not take it.
        """
        # A name is used once: a step in flight may still report a token of a request that was aborted and queued again.
        name = f"{arguments.ticket}.{next(self._numbers)}"
        try:
            from vllm import SamplingParams
            from vllm.inputs.engine import tokens_input

            params = SamplingParams(
                temperature=0.0,
                max_tokens=max_tokens,
                stop_token_ids=list(stop_ids),
                ignore_eos=True,
                detokenize=False,
                extra_args={ARGUMENTS: arguments},
            )
            request = self._engine.input_processor.process_inputs(
                name,
                tokens_input(list(prompt_ids), cache_salt=salt),
                params,
                supported_tasks=self._engine.get_supported_tasks(),
                priority=-1 if urgent else 0,
            )
            # Without vLLM's output processor, which costs more of a step than the scheduler: tokens need no text.
            self._engine.engine_core.add_request(request)
        except VLLM_ERRORS as error:
            raise _unable(error) from error
        self._tickets[name] = arguments.ticket

    def abort(self, tickets: Iterable[Ticket]) -> None:
        """Drop requests."""
        dropped = set(tickets)
        names = [name for name, ticket in self._tickets.items() if ticket in dropped]
        for name in names:
            del self._tickets[name]
        self._engine.engine_core.abort_requests(names)

    def step(self) -> list[EngineOutput]:
        """Compute one step of what is queued. `MachineError` when vLLM fails, as without memory.

        On CUDA it starts that step and returns the tokens of the one before, so the first returns none.
        """
        try:
            made = self._engine.engine_core.get_output().outputs
        except VLLM_ERRORS as error:
            raise _unable(error) from error
        outputs = []
        for output in made:
            ended = output.finish_reason is not None
            ticket = self._tickets.pop(output.request_id, None) if ended else self._tickets.get(output.request_id)
            if ticket is not None:
                outputs.append(EngineOutput(ticket, output.new_token_ids, ended))
        return outputs

    def load(self, weights: Iterator[tuple[str, Tensor]]) -> None:
        """Replace all weights in place, also after `sleep`. Keys and values of requests in flight stay."""
        slept = self._engine.is_sleeping()
        if slept:
            self._engine.wake_up(["weights"])
        self._engine.collective_rpc("start_weight_update")
        self._engine.collective_rpc("update_weights", args=({"weights": weights},))
        self._engine.collective_rpc("finish_weight_update")
        if slept:
            self._engine.wake_up(["kv_cache"])

    def sleep(self) -> bool:
        """Free the device memory until `load`; nothing may be in flight. False where vLLM cannot, as on a CPU."""
        if self._sleeps:
            self._finish_steps()
            self._engine.sleep(level=2)
        return self._sleeps

    def _finish_steps(self) -> None:
        """Wait for what the device still computes, whose memory is about to be freed."""
        core = self._engine.engine_core.engine_core
        while core.batch_queue:
            self.step()

    def close(self) -> None:
        """Free everything."""
        engine, self._engine = self._engine, None
        engine.engine_core.shutdown()
        del engine
        gc.collect()


def _unable(error: object) -> MachineError:
    return MachineError(
        f"vLLM cannot run this model here: {str(error)[:300]}",
        remedy="Join with --engine transformers.",
    )


def _model_directory(run: RunModel) -> Path:
    """A directory with the run's configuration and the name of its architecture, by which vLLM finds its own code.

    In vLLM's cache and always the same for a run, as vLLM compiles a model again whose path is another.
    """
    from vllm import envs

    data = json.dumps(run.settings(), sort_keys=True).encode()
    directory = Path(envs.VLLM_CACHE_ROOT) / "p2prl" / chunk_digest(data).hex()[:16]
    directory.mkdir(parents=True, exist_ok=True)
    partial = directory / f"config.{os.getpid()}"
    partial.write_bytes(data)
    partial.replace(directory / "config.json")
    return directory


def _configuration(run: RunModel, draws: Draws, *, device: torch.device, dtype: str, options: VllmOptions) -> Any:
    from vllm.config import WeightTransferConfig
    from vllm.engine.arg_utils import EngineArgs

    from p2prl.models.engines.vllm.weight_transfer import register_backend

    settings: dict[str, object] = {
        "model": str(_model_directory(run)),
        "skip_tokenizer_init": True,
        "trust_remote_code": False,
        "generation_config": "vllm",  # none: stop tokens come with each request
        "load_format": "dummy",
        "dtype": dtype,
        "max_model_len": options.context or -1,  # -1: the model's own, or what fits the memory
        "max_num_seqs": options.sequences + 1,  # one for the known answer
        "enable_prefix_caching": True,  # the completions of a group share their prompt
        "scheduling_policy": "priority",
        "async_scheduling": False,
        "weight_transfer_config": WeightTransferConfig(backend=register_backend()),
        "disable_log_stats": True,
    }
    if device.type == "cpu":
        settings |= {
            "kv_cache_memory_bytes": _cpu_cache_bytes(run, TORCH_DTYPES[dtype].itemsize, options),
            "block_size": _CPU_BLOCK_TOKENS,
            "enforce_eager": True,  # compiling takes a minute and gains little
        }
    elif device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        usable = int(_GPU_SHARE * free)
        settings |= {
            "gpu_memory_utilization": min(options.memory_bytes or usable, usable) / total,
            "enable_sleep_mode": True,
            "async_scheduling": True,  # the next step is prepared while the device computes this one
            "compilation_config": {"cudagraph_capture_sizes": _graph_sizes(options.sequences)},
            "hf_overrides": {"head_dtype": "float32"},  # summed in float32 without a copy of the weights
        }
    else:
        raise MachineError(f"vLLM does not run on {device.type}", remedy="Join with --engine transformers.")
    config = EngineArgs(**settings).create_engine_config()
    if settings["async_scheduling"] and not config.use_v2_model_runner:  # the first runner's rows are a step behind
        config = EngineArgs(**settings | {"async_scheduling": False}).create_engine_config()
    if config.model_config.using_transformers_backend():  # it would change transformers' classes for this process
        raise _unable("it has no implementation of this architecture")
    if device.index is not None:
        config.device_config.device = device
    config.model_config.logits_processors = [(runner_v2 if config.use_v2_model_runner else runner_v1)(draws)]
    return config


def _graph_sizes(sequences: int) -> list[int]:
    """Numbers of tokens that vLLM captures a step for; others run as the next larger one.

    Twenty instead of its fifty: capturing takes seconds at every start, and a decode of few rows reads weights above
    all, so the rows that fill up to the next size cost little. Above `sequences` come steps that also read prompts.
    """
    sizes = (1, 2, 4, *range(8, 64, 8), *range(64, 128, 16), *range(128, 256, 32), *range(256, 513, 128))
    return sorted({sequences, *(size for size in sizes if size <= 2 * sequences)})


def _cpu_cache_bytes(run: RunModel, itemsize: int, options: VllmOptions) -> int:
    """Memory for keys and values: what is granted, but no more than all sequences could fill."""
    config = run.skeleton.config.get_text_config()
    tokens = (options.context or config.max_position_embeddings) + 2 * _CPU_BLOCK_TOKENS  # whole blocks
    most: int = (options.sequences + 1) * tokens * run.cached_numbers * itemsize
    granted = int(psutil.virtual_memory().available * _CPU_CACHE_SHARE)
    if options.memory_bytes is not None:
        granted = options.memory_bytes - _CPU_WEIGHT_COPIES * run.layout.parameters * itemsize
    return max(1, min(granted, most))
