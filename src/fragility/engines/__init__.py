"""Engines: each takes encoded rows and a protocol and returns a Trace."""
