"""Files of a peer: weight blobs, kept versions, decoded patches, the identity key."""
