"""Blocks: what a certificate says, and all that may be said beside the claims that every certificate has."""
