"""Language models and tokenizers: from a directory or hub the user names, or from the files a run ships."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedModel:
    """A causal LM in evaluation mode and its fast tokenizer."""

    model: Any
    tokenizer: Any
