"""Publication of policy versions: manifests, patches, heads, and the interval between versions."""
