"""Cells of the ordinary-use matrix that are known to fail, with the reason; each stays here until mended."""

KNOWN: dict[str, str] = {}
