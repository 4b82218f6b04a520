"""The lattice block: smallest failing sets and failure probabilities."""
