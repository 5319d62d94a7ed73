"""Audits: real batches replayed, and every per-example gradient held against its bound.

The only part of LipCert, besides training, that loads torch; and of it `records`, `bounds`,
`precision` and the readers of traces do not.
"""
