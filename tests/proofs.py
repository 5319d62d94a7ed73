"""Proofs of networks, kept for the tests of one process: many analyse the same under one premise.

What is proved follows from a program, inputs and loss of the premises, and evidence. Tests of the
core, of the search and of mutants prove everything themselves. Tests of the audit and of training
are content with bounds that are found at once, unless they ask for a tier.
"""

import hashlib
import io
import pickle
from dataclasses import replace
from types import FunctionType

from lipcert.core.ledger.mechanism import Unchanged
from lipcert.search import chains, norms

FOLDERS = ("analysis", "audit", "cli", "report", "suggestions", "training")
FOLDERS += ("test_single_numbers.py", "test_verbs.py")
"""of tests that take proofs which are known"""
CONTENT = ("audit", "training")
"""folders of tests whose networks are proved with tier quick in place of fast"""
_KNOWN = {}


class _Words(pickle.Pickler):
    """What is never read again: functions by their names, and by what they hold."""

    def reducer_override(self, item):
        if not isinstance(item, FunctionType):
            return NotImplemented
        held = [cell.cell_contents for cell in item.__closure__ or ()]
        return tuple, ((item.__module__, item.__qualname__, held),)


def install(bounded, folder):
    """Let the analysis find bounds as tests of this folder do."""
    prove, find = chains.with_chains, norms.find_norms
    if folder in FOLDERS:
        prove = remembering(prove)
    if folder in CONTENT:
        prove, find = at_once(prove, find)
    bounded.with_chains, bounded.find_norms = prove, find


def at_once(prove, find):
    """Both of tier quick, where the tier is that of the default."""
    tiers = {"fast": "quick"}

    def proved(program, premises, evidence, observe=None):
        content = replace(evidence, tier=tiers.get(evidence.tier, evidence.tier))
        return prove(program, premises, content, observe)

    def found(program, scope, tier, *given):
        return find(program, scope, tiers.get(tier, tier), *given)

    return proved, found


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
