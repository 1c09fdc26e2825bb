"""The weight-patch codec: from the words of one policy version to the words of the next, bit for bit.

Pure functions of arrays and bytes, beside swarm, tasks and algorithms: above the protocol's digests, below everything
that stores or sends weights. No torch here: words are unsigned integers, so a volunteer without a GPU stack can apply
a patch. WeightLayout of a patch: `stream`; of a segment: `segments`; how the codecs work: `sparse` and `dense`.
"""
