"""The core derives every bound; to believe a bound, one must trust the core.

It reads the model itself, and all its results follow from the model, premises and proved evidence.
It imports nothing else of the package. Evidence from a certificate, or proposed by a search,
decides only whether a proof succeeds, never what it proves.
"""
