"""The wire: keys, messages, envelopes, manifests and work slots. Bytes in, typed frozen structs out, no I/O.

`docs/protocol.md` is the normative text for what is defined here. Everything above this floor speaks in these types.
"""
