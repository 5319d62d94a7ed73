"""pull/attention: what tokens receive through a normalisation and the attention above it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import takewhile
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from lipcert.core.arithmetic import add_up, divide_up, multiply_up, sqrt_down
from lipcert.core.interval import norm_up
from lipcert.core.line import NotProved
from lipcert.core.lines.chains import ShareLine
from lipcert.core.lines.proof import Proof
from lipcert.core.lines.steps import reads_apart, received
from lipcert.core.program import Dense, Move, Step
from lipcert.core.rules.attention import AttentionRule
from lipcert.core.rules.base import rule_at, step_fact
from lipcert.core.rules.facts import Fact, root_up
from lipcert.core.token_kinds import Attention, Normalize, Scale, Shift

_Path: TypeAlias = list[Step]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class AttentionPull(ShareLine):
    """Of what a normalisation of tokens reads, through it.

    value: of an attention whose queries, keys and values are computed from the normalised tokens û
    by steps that act on each alike: `Dense`, `Scale`, `Shift` and `Move`.
    Hypotheses (checked): the blocks of the normalisation are the runs along the last axis; spreads
    of runs of û reach the keys and the values through these steps, each key and the value beside it
    from one token; nothing else reads what one of the three alone is computed from.
    Proof: ‖û_j‖² = n·q/(q + ε) =: n·t_j² for a token of n entries, so that its Jacobian, at most
    1/√(q + ε), is at most s_j/√ε with s_j² = 1 − t_j². Each key and each value is one affine
    function of its û_j, at most √n·t_j times the spread of a unit from the point of û = 0. Linear
    functions of tokens pass the s_j on, which the constants of `AttentionRule.damped` count. What
    the three send down is added, or is as long as in `pull/stack`, where the norm of their stack is
    proved, or perpendicular, where they move parts of one value. What comes from other readers of
    what they share is added, and is pulled by 1/√ε.
    Attained: by values alone, where all queries see one token, û = 0.
    """

    value: str

    def evaluate(self, proof: Proof) -> float:
        """From the facts, and the cotangents of the attention and of those other readers."""
        normalised, shared, branches = tokens_below(proof, self.value)
        width, known = normalised.shape[-1], proof.facts[normalised.output]
        keys = spread_along(proof, normalised, shared + branches[1]).column_spread
        values = spread_along(proof, normalised, shared + branches[2]).row_spread
        of_keys, of_values = (tokens_met(normalised, shared + row) for row in branches[1:])
        of_keys = of_keys.swapaxes(-2, -1)
        if (of_keys != of_keys[..., :1]).any() or (of_values != of_keys[..., :1]).any():
            raise NotProved("keys are not of the tokens that the values beside them are of")
        rule = rule_at(proof.program.shapes, proof.step(self.value), proof.facts, proof.weights)
        if not isinstance(rule, AttentionRule):
            raise NotProved("it is not of an attention")
        root, longest = root_up(width), divide_up(known.row_norm, sqrt_down(width))
        gains = rule.damped(multiply_up(root, keys), multiply_up(root, values), min(longest, 1.0))
        own = proof.passes[self.of]
        found = multiply_up(own.cotangents[self.value].norm, _joined(proof, gains, branches))
        above = [row[0].output for row in branches if row]
        for step in [normalised, *shared][::-1]:
            rest = received(own, step.output, proof.facts, proof.weights, above)
            found = multiply_up(_steepness(proof, [step]), add_up(found, rest.norm))
            above = [step.output]
        return found

    def entry(self, proof: Proof) -> tuple[str, str | None]:
        """What the normalisation reads, and its output."""
        normalised = tokens_below(proof, self.value)[0]
        return normalised.inputs[0], normalised.output


def tokens_below(proof: Proof, value: str) -> tuple[Step, _Path, list[_Path]]:
    """The normalisation below an attention, the steps that its queries, keys and values share, and
    the further ones of each, from below; NotProved where any of the hypotheses does not hold."""
    step, paths, makers = proof.step(value), [], set()
    if not isinstance(step.op, Attention):
        raise NotProved("it is not of an attention")
    for name in step.inputs[:3]:
        path, maker = [], proof.step(name)
        while isinstance(maker.op, Dense | Scale | Shift | Move):
            path.append(maker)
            maker = proof.step(maker.inputs[0])
        paths.append(path[::-1])
        makers.add(maker.output)
    rank = len(maker.shape)
    if len(makers) > 1 or not isinstance(maker.op, Normalize) or rank < 2:
        raise NotProved("no normalisation of tokens lies below the attention")
    if {axis % rank for axis in maker.op.axes} != {rank - 1}:
        raise NotProved("what is normalised below the attention is not its tokens")
    rows = takewhile(lambda row: row[0] is row[1] is row[2], zip(*paths, strict=False))
    shared = [row[0] for row in rows]
    branches = [path[len(shared) :] for path in paths]
    if any(proof.reads[step.output] != 1 for branch in branches for step in branch):
        raise NotProved("something else reads what lies below the attention")
    if proof.program.output in {step.output for step in (maker, *shared)}:
        raise NotProved("the loss reads what lies below the attention, too")
    return maker, shared, branches


def spread_along(proof: Proof, start: Step, path: _Path) -> Fact:
    """What is known at the end of a path where the runs at its start spread by 1; of parts of what
    a matrix computes, by the norms of the rows that they come from, where a line proves them."""
    facts = [Fact.of(start.shape, row_spread=1.0)]
    for step in path:
        fact = step_fact(proof.program, step, {step.inputs[0]: facts[-1]}, proof.weights)
        if step.output in proof.slices and len(facts) > 1:
            spread = multiply_up(proof.slices[step.output], facts[-2].row_spread)
            if fact.row_spread < math.inf:
                fact = replace(fact, row_spread=min(fact.row_spread, spread))
            else:
                fact = replace(fact, column_spread=min(fact.column_spread, spread))
        facts.append(fact)
    return facts[-1]


def tokens_met(start: Step, path: _Path) -> npt.NDArray[np.int64]:
    """The token of the start that each entry at the end of a path is computed from: −1 for none;
    NotProved where it is computed from several."""
    numbers = np.arange(math.prod(start.shape[:-1])).reshape(*start.shape[:-1], 1)
    found = np.broadcast_to(numbers, start.shape)
    for step in path:
        match step.op:
            case Move(sources):
                found = np.where(sources < 0, -1, found.reshape(-1)[np.maximum(sources, 0)])
            case Dense():
                if (found != found[..., :1]).any():
                    raise NotProved("a matrix reads several tokens below the attention")
                found = np.broadcast_to(found[..., :1], step.shape)
            case _:
                found = np.broadcast_to(found, step.shape)
    return found


def _steepness(proof: Proof, path: _Path) -> float:
    """The Lipschitz constants of the steps of a path, multiplied."""
    found = 1.0
    for step in path:
        rule = rule_at(proof.program.shapes, step, proof.facts, proof.weights)
        found = multiply_up(found, rule.lipschitz(0))
    return found


def _joined(proof: Proof, gains: Sequence[float], branches: list[_Path]) -> float:
    """How much longer than the cotangent of the attention all that its branches send down is."""
    first = [branch[0] for branch in branches if branch]
    steep = [_steepness(proof, branch[1:]) for branch in branches]
    sent = [multiply_up(gain, length) for gain, length in zip(gains, steep, strict=True)]
    alone = [
        multiply_up(length, _steepness(proof, branch[:1]))
        for length, branch in zip(sent, branches, strict=True)
    ]
    found = reduce(add_up, alone)
    if len(first) == 3:
        names = {step.output for step in first}
        values = tuple(step.output for step in proof.program.steps if step.output in names)
        stack = proof.stacks.get(values, math.inf)
        found = min(found, multiply_up(stack, norm_up(np.array(sent))))
        is_moved = all(isinstance(step.op, Move) for step in first)
        if is_moved and reads_apart(first, proof.program.size(first[0].inputs[0])):
            found = min(found, norm_up(np.array(alone)))
    return found
