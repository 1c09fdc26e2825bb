"""The tokenizer of a run, built by the tokenizer library from checked rules. Needs neither torch nor transformers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
from tokenizers import AddedToken, Tokenizer

from p2prl.errors import RemoteProtocolError
from p2prl.models.tokenizer.checks import MAX_ADDED_TOKENS, check_tokenizer
from p2prl.models.tokenizer.control_text import SPECIAL_TOKENS, hide_tokens, private_name
from p2prl.models.tokenizer.text_codec import library_panics
from p2prl.protocol import limits


def read_special_tokens(config: Mapping[str, object]) -> dict[str, str]:
    """The texts of the special tokens in a tokenizer_config.json."""
    special: dict[str, str] = {}
    for name, token in config.items():
        if name in SPECIAL_TOKENS and token is not None:
            text = token.get("content") if isinstance(token, dict) else token
            if not isinstance(text, str):
                raise RemoteProtocolError("run files: a special token is no text")
            special[name] = text
    return special


def read_backend(
    data: bytes | memoryview, special: Sequence[str], vocabulary: int, *, hidden: Collection[str] = ()
) -> Tokenizer:
    """The library's tokenizer of a tokenizer.json, with `special` tokens found in texts and no truncation or padding.

    `vocabulary` is the number of the model's token ids; `hidden` tokens are known by their private names alone.
    `RemoteProtocolError` for rules that are refused.
    """
    if len(data) > limits.MAX_RUN_FILE_BYTES:
        raise RemoteProtocolError(f"run files: tokenizer.json has {len(data)} bytes")
    try:
        rules = msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"run files: tokenizer.json is not a JSON object: {str(error)[:200]}") from error
    check_tokenizer(rules)
    if hidden:
        rules = hide_tokens(rules, hidden)
        special = [private_name(token) if token in hidden else token for token in special]
    # Encoded again, so that the library reads what was checked: a key written twice has one value here.
    checked = msgspec.json.encode(rules | {"truncation": None, "padding": None})
    del rules  # as large as what the library makes of it
    try:
        with library_panics():
            backend = Tokenizer.from_buffer(checked)
    except RemoteProtocolError:
        raise
    except Exception as error:  # the library raises nothing narrower
        raise RemoteProtocolError(f"run files: tokenizer.json is not a valid tokenizer: {str(error)[:200]}") from error
    known = backend.get_vocab(with_added_tokens=True)
    if max(known.values(), default=vocabulary) >= vocabulary:
        raise RemoteProtocolError("run files: the tokenizer has tokens that the model does not")
    if any(token not in known for token in special):
        raise RemoteProtocolError("run files: a special token is not in the vocabulary")
    # Before anything is encoded with it: a post-processor can put a thousand tokens around every prompt.
    if backend.num_special_tokens_to_add(is_pair=False) > MAX_ADDED_TOKENS:
        raise RemoteProtocolError("run files: the tokenizer adds too many tokens to a text")
    added = {token.content for token in backend.get_added_tokens_decoder().values()}
    new = [token for token in dict.fromkeys(special) if token not in added]
    backend.add_tokens([AddedToken(token, special=True) for token in new])
    return backend
