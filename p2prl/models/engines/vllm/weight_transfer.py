"""A backend of vLLM's weight-transfer interface that loads weights from this process's memory.

vLLM's own backends move weights between GPUs of a trainer and of its workers. Here they are named tensors on the CPU,
loaded layer by layer: vLLM merges, packs and copies each layer into the memory of the running engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from p2prl.errors import MachineError

_BACKEND = "p2prl_memory"


def register_backend() -> str:
    """Make the backend known to vLLM, once, and return its name."""
    from vllm.distributed.weight_transfer import WeightTransferEngineFactory, base

    if _BACKEND in WeightTransferEngineFactory._registry:
        return _BACKEND

    @dataclass
    class InitInfo(base.WeightTransferInitInfo):  # type: ignore[misc]  # vLLM is optional, so mypy does not see it
        """Nothing: there is no connection."""

    @dataclass
    class UpdateInfo(base.WeightTransferUpdateInfo):  # type: ignore[misc]  # vLLM is optional, so mypy does not see it
        """All weights of a policy by their names in transformers."""

        weights: Iterator[tuple[str, Tensor]]

    class MemoryTransfer(base.WeightTransferEngine):  # type: ignore[misc]  # vLLM is optional, so mypy does not see it
        """Loads the weights it is handed."""

        init_info_cls = InitInfo
        update_info_cls = UpdateInfo

        def init_transfer_engine(self, init_info: Any) -> None:
            del init_info

        def start_weight_update(self) -> None:
            from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

            # Before the reload takes tied weights apart.
            self._names = {name for name, _ in self.model.named_parameters()}
            initialize_layerwise_reload(self.model)

        def receive_weights(self, update_info: Any) -> None:
            loaded = self.model.load_weights(update_info.weights)
            missing = self._names - loaded if loaded is not None else ()
            if missing:
                raise MachineError(
                    f"vLLM found no weights for {len(missing)} of its tensors, such as {min(missing)}",
                    remedy="Join with --engine transformers.",
                )

        def finish_weight_update(self) -> None:
            from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

            finalize_layerwise_reload(self.model, self.model_config)
            _repack_tied_head(self.model)

        def shutdown(self) -> None:
            pass

    WeightTransferEngineFactory.register_engine(_BACKEND, MemoryTransfer)
    return _BACKEND


def _repack_tied_head(model: nn.Module) -> None:
    """Repeat the packing of a head that shares its weight with the embedding.

    On a CPU vLLM packs a copy of the head. Tied weights arrive under the embedding's name alone, so vLLM believes the
    head did not change and keeps the old copy.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

    embeddings = [module for module in model.modules() if isinstance(module, VocabParallelEmbedding)]
    for head in embeddings:
        others = (other for other in embeddings if other is not head)
        if isinstance(head, ParallelLMHead) and any(other.weight is head.weight for other in others):
            head.quant_method.process_weights_after_loading(head)
