"""The core: derives every bound, and is what must be trusted to believe one.

It reads the model itself, and everything that it shows follows from the model, premises and proved
evidence. It imports nothing else of the package. Evidence found in a certificate, or proposed by a
search, only ever decides whether a proof succeeds, never what it proves.
"""
