"""vLLM with its own sampling and its own choices, as a baseline for the sampler on it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import PreTrainedModel

from p2prl.models.base_model.pretrained import LoadedModel
from p2prl.models.engines.vllm.engine import VllmOptions
from p2prl.models.engines.vllm.library import bars_as_stages, import_vllm
from p2prl.models.engines.vllm.sampler import VllmSampler
from p2prl.models.run_files.export import export_run_files
from p2prl.models.run_model import RunModel, read_run_model
from p2prl.models.sampler_port import GenerationRequest
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.models.weights.layout import flatten, layout_of

BARE_VLLM = "vllm alone"
"""Name of bare vLLM in tables."""

_GPU_SHARE = 0.4
"""Share of a GPU's memory: another engine is measured beside it."""

_CPU_CACHE_BYTES = 1 << 28


class BareVllm:
    """vLLM with random weights. It schedules a step while another is computed where it can, as by default.

    Never closed: closing an engine ends the process group that all engines of a process use.
    """

    def __init__(self, run: RunModel, device: torch.device, dtype: str, *, context: int, sequences: int = 256) -> None:
        """`ConfigError` without vLLM."""
        self._params: Any = import_vllm().SamplingParams
        from vllm.engine.arg_utils import EngineArgs
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.llm_engine import LLMEngine

        self._kind = RequestOutputKind.FINAL_ONLY  # as `LLM.generate`: the cheapest
        self._names = itertools.count()
        settings: dict[str, object] = {"gpu_memory_utilization": _GPU_SHARE}
        if device.type == "cpu":
            settings = {"enforce_eager": True, "kv_cache_memory_bytes": _CPU_CACHE_BYTES, "block_size": 32}
        with TemporaryDirectory() as directory, bars_as_stages():
            (Path(directory) / "config.json").write_text(json.dumps(run.settings()))
            settings |= {"model": directory, "load_format": "dummy", "skip_tokenizer_init": True, "dtype": dtype}
            settings |= {"max_model_len": context, "max_num_seqs": sequences, "disable_log_stats": True}
            self._engine: Any = LLMEngine.from_engine_args(EngineArgs(**settings))

    def sample(self, asked: Sequence[GenerationRequest], *, logprobs: int | None = None) -> int:
        """Sample as many tokens as asked for, and return their number."""
        for request in asked:
            params = self._params(
                temperature=request.temperature,
                max_tokens=request.max_new_tokens,
                ignore_eos=True,
                detokenize=False,
                logprobs=logprobs,
                output_kind=self._kind,
            )
            self._engine.add_request(str(next(self._names)), {"prompt_token_ids": list(request.prompt_ids)}, params)
        tokens = 0
        while self._engine.has_unfinished_requests():
            tokens += sum(len(output.outputs[0].token_ids) for output in self._engine.step() if output.finished)
        return tokens


@dataclass(frozen=True, slots=True)
class StartedVllm:
    """The sampler on vLLM with a policy, and vLLM alone, in one process."""

    sampler: VllmSampler
    bare: BareVllm


def start_vllm(model: PreTrainedModel, *, device: torch.device, dtype: str, context: int, rows: int) -> StartedVllm:
    """Start both for a transformers model, each with a share of the memory of a GPU.

    `context` tokens and `rows` completions at most. `ConfigError` without vLLM, `MachineError` when it cannot run it.
    """
    layout = layout_of(model, dtype)
    files = export_run_files(LoadedModel(model=model, tokenizer=tiny_model().tokenizer))
    run = read_run_model(files, layout_digest=layout.digest, weight_bytes=layout.size_bytes, dtype=dtype)
    memory = _CPU_CACHE_BYTES + 2 * layout.size_bytes
    if device.type == "cuda":
        memory = int(_GPU_SHARE * torch.cuda.get_device_properties(device).total_memory)
    options = VllmOptions(memory_bytes=memory, context=context, sequences=rows)
    sampler = VllmSampler(run, device=device, dtype=dtype, options=options)
    sampler.swap(sampler.stage(bytes(flatten(model, layout)), 0))
    return StartedVllm(sampler, BareVllm(run, device, dtype, context=context, sequences=rows))
