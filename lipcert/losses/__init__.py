"""Losses: certified bounds of the gradient that one example's loss sends into the network."""

from __future__ import annotations

from lipcert.losses.base import Loss, LossRecord, OutputReduction
from lipcert.losses.factory import LOSS_PARAMETERS, make_loss

__all__ = ["LOSS_PARAMETERS", "Loss", "LossRecord", "OutputReduction", "make_loss"]
