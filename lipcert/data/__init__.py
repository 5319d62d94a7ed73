"""Data: read examples from wherever users keep them, in order and a few at a time; no torch."""
