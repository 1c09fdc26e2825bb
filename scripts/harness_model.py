"""Model for lm-evaluation-harness whose prompts are token ids: exactly those that p2prl prompts with.

    python -m scripts.harness_model --model p2prl --model_args pretrained=DIR --tasks … --include_path FOLDER

A text would be encoded again, and control tokens in the text of a row would be read as such. It takes the harness's own
command line. `scripts/eval_harness.py` starts it, and writes the tasks.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch


def prompt_text(token_ids: Sequence[int]) -> str:
    """A prompt as the harness carries it, which takes texts alone."""
    return json.dumps(list(token_ids))


def prompt_ids(text: str) -> list[int]:
    """The token ids of a prompt that `prompt_text` wrote."""
    token_ids: list[int] = json.loads(text)
    return token_ids


def prompt_batch(texts: Sequence[str], pad_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and attention mask of prompts, (prompt, token), padded on the left."""
    rows = [prompt_ids(text) for text in texts]
    longest = max(map(len, rows))
    padded = [[pad_id] * (longest - len(row)) + row for row in rows]
    mask = [[0] * (longest - len(row)) + [1] * len(row) for row in rows]
    return torch.tensor(padded), torch.tensor(mask)


def main() -> None:
    """The harness's command line, with the model `p2prl`."""
    from lm_eval.__main__ import cli_evaluate
    from lm_eval.api.registry import register_model
    from lm_eval.models.huggingface import HFLM

    @register_model("p2prl")
    class PromptedModel(HFLM):  # type: ignore[misc,unused-ignore]
        """The harness's model of transformers, without its tokenizer for prompts. No prompt is cut: each one of a run
        fits its model with a whole completion."""

        def tok_encode(self, string: str, **_: Any) -> list[int]:
            return prompt_ids(string)

        def tok_batch_encode(self, strings: Sequence[str], **_: Any) -> tuple[torch.Tensor, torch.Tensor]:
            return prompt_batch(strings, self.tokenizer.pad_token_id)

    cli_evaluate()


if __name__ == "__main__":
    main()
