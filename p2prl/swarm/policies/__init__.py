"""Policy versions: catalog, sync, routes over patches, the local base model."""
