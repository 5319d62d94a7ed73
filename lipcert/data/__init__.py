"""Examples from wherever users keep them, read in order and a few at a time; no torch."""
