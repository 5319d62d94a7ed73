"""Searches for evidence, in plain float64: nothing here is trusted, and the core proves it all."""
