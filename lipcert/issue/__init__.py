"""Issuing certificates: the engine's searches, written down so that the checker can follow them.

Nothing here is trusted: a certificate counts only after the checker has accepted it.
"""
