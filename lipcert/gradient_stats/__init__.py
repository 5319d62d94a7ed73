"""Measured gradients of single examples, with which noise and bounds are compared. No bounds."""
