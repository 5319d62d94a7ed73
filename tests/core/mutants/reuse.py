"""One reading, and one proof of each norm and form, for all mutants that do not touch them.

Within `reused`, `check` asks functions that remember their answers by all that enters them: what a
mutant shares with the certificate is computed once. What a verdict compares is not.
"""

from contextlib import contextmanager

import pytest

from lipcert.core import check, clips, digest
from lipcert.core.accounting import account
from lipcert.core.lines import chains, norms


@contextmanager
def reused(memory):
    """For checks of mutants of one certificate; memory: what is known, empty at first."""
    with pytest.MonkeyPatch.context() as patch:
        for owner, name, key in (
            (check, "read_model", _file),
            (digest, "structural_digest", _model),
            (check, "lower", _output),
            (clips, "with_clips", _clipped),
            (norms, "norm_holds", _norm),
            (chains, "chain_form", _form),
            (account, "derived_epsilon", _run),
        ):
            patch.setattr(owner, name, _remembered(getattr(owner, name), key, memory))
        yield


def _remembered(function, key, memory):
    """Arguments are kept with the answer: an object that lives keeps its id to itself."""

    def asked(*arguments, **named):
        known = key, key(*arguments, **named)
        if known not in memory:
            memory[known] = (arguments, named), function(*arguments, **named)
        return memory[known][1]

    return asked


def _file(path):
    return path, path.read_bytes()


def _model(model):
    return id(model)


def _output(model, *outputs: str):
    return id(model), outputs


def _clipped(program, clip):
    return id(program), clip


def _norm(
    steps,
    shapes,
    bound: float,
    witness,
    check,
):
    del shapes
    return tuple(map(id, steps)), bound, witness, id(check)


def _form(
    start: str,
    steps,
    shapes,
    slopes,
    multipliers,
    *,
    proof,
):
    del shapes
    ends = tuple((name, end.lo.tobytes(), end.hi.tobytes()) for name, end in slopes.items())
    return start, tuple(map(id, steps)), ends, tuple(multipliers), id(proof)


def _run(claim, run, multiplier: float, relation: str):
    return claim.delta, run, multiplier, relation
