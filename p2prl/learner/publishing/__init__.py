"""Policy versions going out: manifests, patches, heads, and the interval between them."""
