"""The intervals block: how far each field of a row may move before the decision flips."""
