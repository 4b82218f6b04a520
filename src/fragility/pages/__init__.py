"""How results are written for people: words, figures, and files by suffix."""
