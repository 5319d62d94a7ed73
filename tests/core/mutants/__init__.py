"""Mutants of valid certificates and of their models: what a checker must refuse, and must not."""
