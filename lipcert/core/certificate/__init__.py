"""The certificate as a file: its canonical text and the numbers written in it.

Imports nothing of the rest of the package, so that who writes certificates and who checks them
share a language and no reasoning.
"""
