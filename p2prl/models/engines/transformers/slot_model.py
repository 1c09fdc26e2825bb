"""A policy's model with a slot cache: fill cache rows with sequences, and decode one more token of each.

Rows are packed: those in use are 0 … n − 1. Whether a model computes the same with this cache as without any is found
by comparing logits, not by its name: `check_slots`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from p2prl.models.engines.transformers.batching import batches
from p2prl.models.engines.transformers.grouped_attention import use_grouped_attention, use_plain_attention
from p2prl.models.engines.transformers.policy_model import PolicyModel
from p2prl.models.engines.transformers.slot_cache import SlotCache
from p2prl.models.hardware.failures import is_out_of_memory

_LARGEST_ERROR = {torch.float32: 1e-3, torch.bfloat16: 0.2, torch.float16: 0.03}
"""Root mean square error of the logits, relative to their spread: ten times what rounding gives."""

_CHECKED_WINDOW = 3
"""Sliding window during the check, in tokens: sequences of it are longer."""

_PREFILL_TOKENS = 16_384
"""Most tokens computed in one pass before decoding; bounds activations."""

_CHECKED_COLUMNS = 8
"""Cache columns of the check, and the least context of a model that is decoded so."""

Mask = Tensor | dict[str, Tensor]


class SlotModel:
    """Computes with `policy` and a slot cache of its own."""

    def __init__(self, policy: PolicyModel) -> None:
        self._policy = policy
        self._cache = SlotCache(policy.config.num_hidden_layers)
        self._masks = _Masks(policy)
        self.moves = 0
        """Times that the cache's memory was replaced."""

    @property
    def token_bytes(self) -> int:
        """Keys and values of one token; 0 before any were computed."""
        return self._cache.token_bytes

    @property
    def rows(self) -> int:
        """Cache rows allocated."""
        return self._cache.rows

    @property
    def columns(self) -> int:
        """Tokens of a cache row allocated."""
        return self._cache.columns

    def clear(self) -> None:
        """Give back the cache's memory."""
        self.moves += 1
        self._cache = SlotCache(self._policy.config.num_hidden_layers)

    def reserve(self, rows: int, columns: int, *, most_rows: int, most_columns: int) -> None:
        """See `SlotCache.reserve`."""
        held = (self.rows, self.columns)
        self._cache.reserve(rows, columns, most_rows=most_rows, most_columns=most_columns)
        self.moves += held != (self.rows, self.columns)
        self._masks.reserve(self._cache.columns)

    def fill(self, slots: Sequence[int], sequences: Sequence[tuple[int, ...]]) -> None:
        """Compute keys and values of sequences and put them into cache rows; of equal ones only once."""
        owners: dict[tuple[int, ...], list[int]] = {}
        for slot, sequence in zip(slots, sequences, strict=True):
            owners.setdefault(sequence, []).append(slot)
        unique = [sequence for sequence in owners if sequence]
        for batch in batches([(len(sequence), 0) for sequence in unique], _PREFILL_TOKENS):
            chosen = [unique[i] for i in batch]
            longest = max(map(len, chosen))
            padded = [[*sequence, *[0] * (longest - len(sequence))] for sequence in chosen]
            # Pads on the right need no mask: no earlier token sees them.
            input_ids = torch.tensor(padded, device=self._policy.device)
            positions = torch.arange(longest, device=self._policy.device).expand(len(chosen), -1)
            computed = DynamicCache()  # keeps every token, also of layers with a sliding window
            self._policy.forward(input_ids, cache=computed, positions=positions, keep=1)
            pairs = [(slot, i) for i, sequence in enumerate(chosen) for slot in owners[sequence]]
            self._cache.fill([slot for slot, _ in pairs], computed, [i for _, i in pairs])

    def copy(self, sources: Sequence[int], targets: Sequence[int], tokens: int) -> None:
        """Copy the first tokens of cache rows to other rows."""
        self._cache.copy_rows(sources, targets, tokens)

    def logits(self, tokens_N: Tensor, positions_N: Tensor, width: int) -> Tensor:
        """Next-token logits (N, V) after one more token in each of the first N cache rows, at these positions.

        `width` is the longest row with it.
        """
        self._cache.begin_step(positions_N, width)
        return self._policy.forward(
            tokens_N[:, None],
            cache=self._cache,
            mask=self._masks.visible(positions_N, width),
            positions=positions_N[:, None],
            keep=1,
        )[:, -1]


class _Masks:
    """What a row's newest token attends to: numbers added to scores, (N, 1, 1, columns).

    One mask, or one for each kind of layer where there are two.
    """

    def __init__(self, policy: PolicyModel) -> None:
        window: int | None = getattr(policy.config, "sliding_window", None)
        kinds = set(getattr(policy.config, "layer_types", None) or ())
        self._window = None if kinds == {"full_attention"} else window
        self._is_mixed = self._window is not None and len(kinds) > 1
        self._hidden = torch.tensor(torch.finfo(policy.dtype).min, dtype=policy.dtype, device=policy.device)
        self._shown = torch.zeros_like(self._hidden)
        self._columns = torch.empty(0, dtype=torch.int64, device=policy.device)

    def reserve(self, width: int) -> None:
        """Masks are at most this wide. What they are made from stays where it is until this grows."""
        if width > len(self._columns):
            self._columns = torch.arange(width, device=self._columns.device)

    def visible(self, positions_N: Tensor, width: int) -> Mask:
        """Mask of rows whose newest token is at these positions, over columns 0 … `width` − 1."""
        columns_L, positions_N111 = self._columns[:width], positions_N[:, None, None, None]
        ahead = columns_L > positions_N111
        if self._window is None:
            return torch.where(ahead, self._hidden, self._shown)
        sliding = torch.where(ahead | (columns_L <= positions_N111 - self._window), self._hidden, self._shown)
        if not self._is_mixed:
            return sliding
        return {"full_attention": torch.where(ahead, self._hidden, self._shown), "sliding_attention": sliding}


_SEQUENCES = ((1, 2, 3, 4, 5, 6, 7), (3, 1, 2), (2, 5, 4, 3, 1), (4, 4, 1, 6))
"""Token ids, taken modulo the vocabulary."""


@dataclass(frozen=True, slots=True)
class SlotCheck:
    """Result of `check_slots`."""

    works: bool
    token_bytes: int
    """Keys and values of one token."""


def check_slots(policy: PolicyModel) -> SlotCheck | None:
    """Compare rows that join, end and move with each alone without a cache.

    None when the policy's logits are not numbers, so that nothing can be compared. A model that works attends in groups
    from then on.
    """
    use_grouped_attention(policy.model)
    check = _compare(policy)
    if check is None or not check.works:
        use_plain_attention(policy.model)
    return check


def _compare(policy: PolicyModel) -> SlotCheck | None:
    if policy.context is not None and policy.context < _CHECKED_COLUMNS:
        return SlotCheck(False, 0)
    sequences = [tuple(token % policy.vocabulary for token in sequence) for sequence in _SEQUENCES]
    with _short_window(policy):
        model = SlotModel(policy)
        alone = [
            policy.forward(torch.tensor([sequence], device=policy.device), cache=None, keep=len(sequence))[0].float()
            for sequence in sequences
        ]
        if not all(bool(torch.isfinite(logits).all()) for logits in alone):
            return None
        try:
            pairs = list(_decode_known(model, sequences, alone, policy.device))
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            if is_out_of_memory(error):
                raise
            return SlotCheck(False, 0)  # of a model whose layers keep something else than keys and values
    wanted, got = torch.stack([pair[0] for pair in pairs]), torch.stack([pair[1] for pair in pairs])
    off = (got - wanted).square().mean().sqrt()
    return SlotCheck(bool(off <= _LARGEST_ERROR[policy.dtype] * wanted.std()), model.token_bytes)


def _decode_known(
    model: SlotModel, sequences: Sequence[tuple[int, ...]], alone: Sequence[Tensor], device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Pairs of logits, wanted and got: rows of different lengths, one of which ends and is replaced by two."""
    model.reserve(3, _CHECKED_COLUMNS, most_rows=3, most_columns=_CHECKED_COLUMNS)

    def step(ends: Sequence[tuple[int, int]]) -> Iterator[tuple[Tensor, Tensor]]:
        """Decode token `position` of sequence `number`, for each cache row."""
        tokens_N = torch.tensor([sequences[number][position] for number, position in ends], device=device)
        positions_N = torch.tensor([position for _, position in ends], device=device)
        logits_NV = model.logits(tokens_N, positions_N, max(position for _, position in ends) + 1)
        for (number, position), logits in zip(ends, logits_NV.float(), strict=True):
            yield alone[number][position], logits

    model.fill([0, 1], [sequences[0][:4], sequences[1][:2]])
    yield from step([(0, 4), (1, 2)])
    model.fill([1], [sequences[2][:3]])
    model.fill([2], [sequences[3][:1]])
    yield from step([(0, 5), (2, 3), (3, 1)])
    model.copy([2], [0], 2)
    yield from step([(3, 2), (2, 4)])


@contextmanager
def _short_window(policy: PolicyModel) -> Iterator[None]:
    """A sliding window that the known sequences exceed, in models that have one."""
    window = getattr(policy.config, "sliding_window", None)
    if window is None:
        yield
        return
    policy.config.sliding_window = min(window, _CHECKED_WINDOW)
    try:
        yield
    finally:
        policy.config.sliding_window = window
