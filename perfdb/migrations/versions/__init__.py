"""One file a schema version, named after its number."""
