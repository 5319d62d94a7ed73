"""Losses: how long the gradient is that the loss of one example sends into the network."""

from __future__ import annotations

from lipcert.core.losses.kinds import loss_cotangent

__all__ = ["loss_cotangent"]
