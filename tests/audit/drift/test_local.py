"""Local errors: torch in each precision against float64, on hard inputs, for every op."""

from __future__ import annotations

import inspect
import itertools
import sys

import numpy as np
import pytest
import torch

from lipcert.audit.arithmetic import Arithmetic
from lipcert.audit.drift.local import Growth, LocalErrors, Site, carried, local_errors
from lipcert.audit.drift.losses import loss_error
from lipcert.audit.drift.rounding import Rounding
from lipcert.audit.lowering import lowered
from lipcert.audit.precision import Precision
from lipcert.facts import Bound, CotangentFacts, ValueFacts
from lipcert.interval import Interval
from lipcert.losses.base import Loss
from lipcert.operand import Operand
from lipcert.ops.base import Op
from lipcert.ops.clip import CotangentClip
from lipcert.ops.normalization import BatchNorm, GroupNorm, LayerNorm, RmsNorm
from lipcert.upper import Upper
from tests.cases import Case
from tests.ops.test_sound import all_cases, scope


def _unused(inputs: object, operands: object) -> torch.Tensor:
    raise AssertionError(inputs, operands)


CASES = all_cases()
HOSTILE = [
    Case(f"{type(op).__name__}_{radius}", op, (shape,), reference=_unused, radius=radius)
    for radius in (3.0, 100.0)
    for op, shape in (
        (LayerNorm(1, 1e-5, Operand(np.linspace(0.5, 2.0, 64)), Operand(np.ones(64))), (2, 64)),
        (LayerNorm(2, 1e-5), (3, 50)),
        (GroupNorm(2, 1e-5, Operand(np.ones(4)), Operand(np.ones(4))), (4, 5, 5)),
        (RmsNorm(1, 1e-6, Operand(np.linspace(-2.0, 2.0, 64))), (2, 64)),
    )
]
"""normalisations of values whose mean is far larger than their spread"""
EXAMPLES = 12
TRIED = [Precision.FLOAT32, Precision.BFLOAT16]
NORMALIZED = (LayerNorm, GroupNorm, RmsNorm)
CPU = torch.device("cpu")


def hard_inputs(case: Case, generator: torch.Generator) -> list[torch.Tensor]:
    """Sizes from 1e-4 to the radius, nearly constant values, values that cancel; in float32."""
    found = []
    for shape in case.inputs:
        x = torch.randn(EXAMPLES, *shape, generator=generator, dtype=torch.float64)
        flat = x.reshape(EXAMPLES, -1)
        flat[0] = 1.0 + 1e-4 * flat[0]
        flat[1] = -1.0 + 1e-6 * flat[1]
        flat[2, ::2], flat[2, 1::2] = 1.0, -1.0 + 1e-5
        flat[3] = 0.0
        sizes = torch.logspace(-4, 0, EXAMPLES, dtype=torch.float64).roll(4)[:, None]
        flat = case.radius * sizes * flat / flat.norm(dim=1, keepdim=True).clamp_min(1e-30)
        if case.box is not None:
            flat = flat.clamp(*case.box)
        found.append(flat.reshape(EXAMPLES, *shape).float())
    return found


def facts_of(case: Case, x: torch.Tensor) -> ValueFacts:
    """Facts that these very numbers obey."""
    exact = x.double().numpy()
    longest = max(np.linalg.norm(exact.reshape(len(exact), -1), axis=1)) * (1 + 1e-9)
    box = None
    if case.box is not None:
        low = np.minimum(exact.min(axis=0), case.box[0])
        box = Interval(low, np.maximum(exact.max(axis=0), case.box[1]))
    return ValueFacts.of(tuple(x.shape[1:]), Bound(Upper(float(longest)), "test"), box)


def site_of(case: Case, inputs: list[torch.Tensor], precision: Precision) -> Site:
    facts = [facts_of(case, x) for x in inputs]
    arrays = {slot: operand.array for slot, operand in case.op.operands().items()}
    output = case.op.output_facts(facts, scope())
    return Site(facts, output, arrays, scope(), Rounding.of(precision))


def lengths(x: torch.Tensor) -> torch.Tensor:
    return x.double().reshape(len(x), -1).norm(dim=1)


def computed(
    op: Op, inputs: list[torch.Tensor], cotangent: torch.Tensor, dtype: torch.dtype | None
) -> tuple[torch.Tensor, list[torch.Tensor], dict[str, list[torch.Tensor]]]:
    """Output, cotangents of the inputs, and of the operands example by example."""
    leaves = [x.detach().clone().to(dtype or x.dtype).requires_grad_() for x in inputs]
    weights = torch.float32 if dtype is None else dtype
    operands = {
        slot: torch.tensor(operand.array, dtype=weights).expand(operand.shape).requires_grad_()
        for slot, operand in op.operands().items()
    }
    output = lowered(op, leaves, operands)
    sent = cotangent.to(output.dtype)
    found = torch.autograd.grad(output, leaves, sent, retain_graph=True, allow_unused=True)
    whole = [torch.zeros_like(x) if g is None else g for g, x in zip(found, leaves, strict=True)]
    slots: dict[str, list[torch.Tensor]] = {slot: [] for slot in operands}
    for example in range(len(sent) if slots else 0):
        alone = torch.zeros_like(sent)
        alone[example] = sent[example]
        shares = torch.autograd.grad(output, list(operands.values()), alone, retain_graph=True)
        for slot, share in zip(operands, shares, strict=True):
            slots[slot].append(share.double())
    return output, whole, slots


def assert_within(error: torch.Tensor, bound: Upper, what: str) -> None:
    assert float(error.max()) <= bound.value, (what, float(error.max()), bound.value)


def check_backward(
    op: Op, site: Site, local: LocalErrors, sizes: torch.Tensor, results: tuple
) -> None:
    (here, slots), (truth, true_slots) = results
    facts = CotangentFacts(Bound(Upper(float(sizes.max())), "test"))
    for index, growth in enumerate(local.inputs):
        extra = carried(op, index, site, facts, Upper(0.0)).value
        assert_growth(
            op, here[index].double(), truth[index], sizes, growth, extra, site.lipschitz(op, index)
        )
    for slot, growth in local.operands.items():
        stacked = torch.stack(slots[slot]), torch.stack(true_slots[slot])
        lipschitz = site.param_lipschitz(op)[slot]
        assert_growth(op, *stacked, sizes, growth, 0.0, lipschitz)


def assert_growth(
    op: Op,
    here: torch.Tensor,
    truth: torch.Tensor,
    sizes: torch.Tensor,
    growth: Growth,
    extra: float,
    lipschitz: Upper,
) -> None:
    for example, size in enumerate(sizes.tolist()):
        allowed = growth.at(Upper(size)).value + extra
        if isinstance(op, NORMALIZED):
            norm = float(here[example].norm())
            assert norm <= lipschitz.value * size + allowed, (example, norm, allowed)
        else:
            off = float((here[example] - truth[example]).norm())
            assert off <= allowed + 1e-15 * float(truth[example].norm()), (example, off, allowed)


@pytest.mark.parametrize("precision", TRIED, ids=lambda p: p.value)
@pytest.mark.parametrize("case", [*CASES, *HOSTILE], ids=lambda case: case.name)
def test_one_op_errs_by_no_more_than_its_local_error(case: Case, precision: Precision) -> None:
    generator = torch.Generator().manual_seed(7)
    inputs = hard_inputs(case, generator)
    dtype = torch.bfloat16 if precision is Precision.BFLOAT16 else torch.float32
    if not isinstance(case.op, BatchNorm):  # whose statistics have the dtype of its input here
        inputs = [x.to(dtype) for x in inputs]
    site = site_of(case, inputs, precision)
    local = local_errors(case.op, site)
    shape = (EXAMPLES, *site.output.shape)
    cotangent = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    with Arithmetic(CPU, precision).active():
        output, *here = computed(case.op, inputs, cotangent, None)
    exact, *truth = computed(case.op, inputs, cotangent, torch.float64)
    assert_within(lengths(output.detach().double() - exact.detach()), local.output, "output")
    if local.reached is not None:
        assert_within(lengths(output.detach()), local.reached.norm.value, "reached")
    check_backward(case.op, site, local, lengths(cotangent), (here, truth))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_local_errors_grow_with_the_roundings(case: Case) -> None:
    inputs = hard_inputs(case, torch.Generator().manual_seed(1))
    order = [Precision.FLOAT64, Precision.FLOAT32, Precision.TF32, Precision.BFLOAT16]
    found = [local_errors(case.op, site_of(case, inputs, precision)) for precision in order]
    one = Upper(1.0)
    for finer, coarser in itertools.pairwise(found):
        assert not coarser.output < finer.output
        for fine, coarse in zip(finer.inputs, coarser.inputs, strict=True):
            assert not coarse.at(one) < fine.at(one)
        for slot, fine in finer.operands.items():
            assert not coarser.operands[slot].at(one) < fine.at(one)


def concrete(base: type) -> set[type]:
    """Leaves in the package, without those that a dataclass with slots has replaced."""
    found = set()
    for child in base.__subclasses__():
        module = sys.modules[child.__module__]
        own = child.__module__.startswith("lipcert.") and getattr(module, child.__name__) is child
        found |= concrete(child) | ({child} if own and not inspect.isabstract(child) else set())
    return found


def test_every_op_and_every_loss_has_a_rule() -> None:
    ops, losses = concrete(Op), concrete(Loss)
    assert len(ops) >= 35
    assert len(losses) >= 10
    assert [op for op in ops if local_errors.dispatch(op) is local_errors.dispatch(object)] == []
    assert [
        loss for loss in losses if loss_error.dispatch(loss) is loss_error.dispatch(object)
    ] == []


def test_the_clip_of_a_cotangent_forgets_what_was_wrong_above() -> None:
    op = CotangentClip(Upper(0.5))
    facts = ValueFacts.of((3, 2), Bound(Upper(1.0), "test"))
    site = Site([facts], facts, {}, scope(), Rounding.of(Precision.FLOAT32))
    large = CotangentFacts(Bound(Upper(10.0), "test"))
    small = CotangentFacts(Bound(Upper(0.1), "test"))
    assert carried(op, 0, site, large, Upper(3.0)).value < 1e-4
    assert carried(op, 0, site, small, Upper(3.0)).value >= 3.0
