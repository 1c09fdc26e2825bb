"""The wire protocol: keys, messages, envelopes, manifests and work slots. No I/O: bytes in, typed frozen structs out.

`docs/protocol.md` is the normative text. The packages above use these types.
"""
