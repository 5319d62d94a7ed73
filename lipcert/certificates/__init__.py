"""Issuing certificates: what an analysis derived, written down so that it can be derived again.

Nothing here is trusted: a certificate counts only after the checker has accepted it.
"""
