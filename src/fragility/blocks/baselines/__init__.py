"""The baselines block: the same confident rows under every baseline that the model admits."""
