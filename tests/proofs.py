"""Proofs of networks, kept for the tests of one process: many analyse the same under one premise.

What is proved follows from a program, inputs and loss of the premises, and evidence. Tests of the
core, of the search and of mutants prove everything themselves.
"""

import hashlib
import io
import pickle
from dataclasses import replace
from types import FunctionType

from lipcert.core.ledger.mechanism import Unchanged

FOLDERS = ("analysis", "audit", "cli", "report", "suggestions", "training")
FOLDERS += ("test_single_numbers.py", "test_verbs.py")
"""of tests that take proofs which are known"""
_KNOWN = {}


class _Words(pickle.Pickler):
    """What is never read again: functions by their names, and by what they hold."""

    def reducer_override(self, item):
        if not isinstance(item, FunctionType):
            return NotImplemented
        held = [cell.cell_contents for cell in item.__closure__ or ()]
        return tuple, ((item.__module__, item.__qualname__, held),)


def remembering(prove):
    """The same, of what was not proved before."""

    def proved(program, premises, evidence, observe=None):
        read = replace(premises, mechanism=Unchanged(), relation="", divisor=None, run=None)
        _Words(words := io.BytesIO()).dump((program, read, evidence))
        key = hashlib.sha256(words.getbuffer()).digest()
        if key not in _KNOWN:
            _KNOWN[key] = prove(program, premises, evidence, observe)
        return _KNOWN[key]

    return proved
