"""Verification: one file per check, and the order in which they run."""
