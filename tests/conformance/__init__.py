"""Certificates with their expected verdicts, for every implementation of the checker."""
