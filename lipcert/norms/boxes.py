"""Proofs by boxes: testing a symbol at the centres of boxes bounds it on a whole torus.

What enters: a symbol and a claim, `TorusCertificate`. What leaves: an `Upper` that, added to the
claimed square, makes it true, or inf where the claim is not proved. Nothing here searches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from lipcert.facts import Witness
from lipcert.interval import Interval
from lipcert.norms.eigenvalues import prove_below
from lipcert.norms.factor import BoolArray
from lipcert.norms.symbol import Symbol
from lipcert.norms.torus import Boxes, Torus
from lipcert.upper import INFINITE, ZERO, Lower, Upper


@final
@dataclass(frozen=True, slots=True)
class TorusCertificate(Witness):
    """The claim that λ_max(H(w)) ≤ square, up to rounding, at every frequency w of a torus.

    The boxes that prove it need no search: those that fail are bisected.
    """

    torus: Torus
    square: float


def verify_torus(symbol: Symbol, certificate: TorusCertificate) -> Upper:
    """Returns E with square + E ≥ λ_max(H(w)) on the torus, in all groups; inf if not proved.

    Proof: `circulant_norm`; the boxes that pass cover `Torus.everything`.
    """
    torus = certificate.torus
    if torus.spans != symbol.spans:
        return INFINITE
    boxes, rounding = torus.everything(symbol.groups), ZERO
    while len(boxes):
        proved, excess = check_boxes(symbol, torus, boxes, certificate.square)
        if np.any(boxes.are_points & ~proved):
            return INFINITE
        rounding = max(rounding, excess)
        boxes = boxes.chosen(~proved).children()
    return rounding


def check_boxes(
    symbol: Symbol, torus: Torus, boxes: Boxes, square: float
) -> tuple[BoolArray, Upper]:
    """Returns (proved, E): λ_max(H) ≤ (square + E) · shrinkage at the centre of proved boxes.

    Proof: λ_max(H) ≤ floor + e with floor ≤ square · shrinkage, and e ≤ E · shrinkage the
    rounding of the test and of the symbol.
    """
    shrinkage = torus.shrinkage(boxes)
    floors = (Interval.exact(shrinkage) * Interval.exact(np.full(len(boxes), square))).lo
    proved = np.zeros(len(boxes), dtype=np.bool_)
    hopeful = np.flatnonzero(shrinkage > 0.0)
    worst, start = ZERO, 0
    chosen = boxes.chosen(hopeful)
    for centres in symbol.portions(chosen.group, *torus.centres(chosen)):
        rows = hopeful[start : start + len(centres)]
        start += len(centres)
        proved[rows], excess = prove_below(centres, floors[rows])
        worst = max(worst, excess)
    if not np.any(proved):
        return proved, ZERO
    least = Lower(float(np.min(shrinkage[proved])))
    return proved, (worst + symbol.error).over(least)
