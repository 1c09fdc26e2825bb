"""A confined worker that decodes on a card, as JSON: steps it recorded, and how many rows have the plain tokens.

A program of its own, as Landlock binds only threads that do not run yet. The argument is a home folder; its kernels are
compiled if they are not there.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from p2prl.confinement.role_confinement import confine_calls, confine_files
from p2prl.models.seeded_draw.kept_kernels import kernels_for


def decode(device: str) -> dict[str, Any]:
    """Tokens with graphs and without, of a random model."""
    import torch

    from p2prl.bench.random_models import random_model
    from p2prl.models.engines.transformers.policy_model import PolicyModel
    from p2prl.models.engines.transformers.sampler import TransformersSampler
    from p2prl.models.engines.transformers.slot_decoder import SlotDecoder
    from p2prl.models.sampler_port import GenerationRequest
    from p2prl.models.sampling import sample_all
    from p2prl.models.seeded_draw.draw import card_draw
    from p2prl.models.weights.layout import layout_of

    place = torch.device(device)
    found: dict[str, Any] = {"card": torch.cuda.get_device_name(place), "draws_on_card": card_draw(place) is not None}
    requests = [
        GenerationRequest(
            prompt_ids=tuple(range(1, 6 + i)), seed=i, max_new_tokens=24, temperature=1.0, stop_ids=frozenset()
        )
        for i in range(12)
    ]
    for dtype in ("float32", "bfloat16"):
        model = random_model("29m", vocabulary=5000, dtype=dtype, device=place, seed=1)
        policy = PolicyModel(model, layout_of(model, dtype))
        captured = TransformersSampler(policy)
        made, plain = (sample_all(each, requests) for each in (captured, TransformersSampler(policy, capture=False)))
        decoder = captured._decoder
        assert isinstance(decoder, SlotDecoder)
        found[dtype] = {
            "graphs": -1 if decoder._graphs is None else decoder._graphs.count,
            "same": sum(one.token_ids == other.token_ids for one, other in zip(made, plain, strict=True)),
            "of": len(requests),
        }
    return found


def starts_programs() -> bool:
    """Whether this process can still start a program."""
    try:
        return subprocess.run(["/bin/true"], check=False).returncode == 0
    except OSError:
        return False


def main() -> None:
    """See the module."""
    logging.basicConfig(level=logging.INFO)  # on standard error
    home, device = Path(sys.argv[1]), "cuda"
    own = home / "seat-1"
    own.mkdir(parents=True, exist_ok=True)
    said: list[str] = []
    began = time.monotonic()
    kernels = kernels_for(home, device, said.append)
    found: dict[str, Any] = {"prepared_s": round(time.monotonic() - began, 2), "said": said, "kernels": str(kernels)}
    protection = confine_files(own, () if kernels is None else (kernels,))
    from p2prl.models.hardware.device_choice import open_device

    open_device(device)
    protection = confine_calls(protection)
    found |= {"protection": str(protection), "starts_programs": starts_programs(), **decode(device)}
    found["writes_kernels"] = kernels is not None and _writes(kernels)
    sys.stdout.write(json.dumps(found))


def _writes(folder: Path) -> bool:
    try:
        (folder / "new").write_bytes(b"")
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
