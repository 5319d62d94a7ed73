"""Losses of one example: parameters, and gradients to try bounds out, which the core derives."""

from __future__ import annotations

from lipcert.losses.base import Loss, LossRecord, OutputReduction
from lipcert.losses.factory import LOSS_PARAMETERS, make_loss

__all__ = ["LOSS_PARAMETERS", "Loss", "LossRecord", "OutputReduction", "make_loss"]
