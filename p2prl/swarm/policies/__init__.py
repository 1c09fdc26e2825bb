"""Policy versions of a run: catalog, patch routes, downloads and retention."""
