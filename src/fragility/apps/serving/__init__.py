"""`fragility serve`: certificates and checks at decision time, over HTTP, and the log of what was decided."""
