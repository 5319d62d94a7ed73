"""Mutants of the core's own code that make a bound too small, and the tests that kill them."""
