"""The independent checker: what must be trusted to believe a certificate.

It reads the certificate and the model itself, and derives every claim again with arithmetic of
its own. Of the rest of the package it imports `lipcert.certificate` and nothing else, so that a
mistake of the analyser cannot be repeated here by sharing its code. A witness found in a
certificate, or proposed by a numerical library, only ever decides whether a proof succeeds,
never what it proves.
"""
