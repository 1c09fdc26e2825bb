"""The weight-patch codec: encodes one policy version's weights relative to another's, and decodes them bit for bit.

Pure functions of arrays and bytes. Weights are machine words here: unsigned integers without torch, so a volunteer
needs no GPU stack to apply a patch. Start with `stream_format`, then `encode` and `decode`. `sparse_codec` and
`dense_codecs` hold the codecs of a segment. `docs/protocol.md` §15 specifies the bytes.
"""
