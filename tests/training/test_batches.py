"""Batches in the forms that loaders have: which parts are inputs, and which are labels."""

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from lipcert.errors import NoVerdictError, UsageError
from lipcert.settings.settings import Settings
from lipcert.training import GradientClipping, Loss
from lipcert.training.batches import admitted, parted
from tests.training.runs import CLASSES, EXAMPLES, lines, private_run

A, B, Y, Z = torch.ones(4, 2), torch.ones(4, 3), torch.zeros(4), torch.zeros(4, 2)
Given = namedtuple("Given", ["one", "other", "label"])


class Takes(nn.Module):
    """By its class, any number of inputs."""


class One(Takes):
    def forward(self, image: Tensor) -> Tensor:
        return image


class Two(Takes):
    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return input_ids + attention_mask


class Perhaps(Takes):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return x if mask is None else x + mask


class WithLoss(Takes):
    """As of Hugging Face, whose modules compute a loss if labels are given."""

    def forward(self, input_ids: Tensor, mask: object = None, labels: object = None) -> Tensor:
        return input_ids


class Several(Takes):
    def forward(self, *inputs: Tensor) -> Tensor:
        return sum(inputs, torch.zeros(()))


READ: list[tuple[Any, type[Takes], int, tuple[Tensor, ...], Any]] = [
    ((A, Y), One, 1, (A,), Y),
    ([A, Y], One, 1, (A,), Y),
    ((A, Y, "number"), One, 1, (A,), Y),
    ((A, Y, Z), One, 2, (A,), (Y, Z)),
    ((A, (Y, Z)), One, 2, (A,), (Y, Z)),
    ((A, {"a": Y, "b": Z}), One, 2, (A,), {"a": Y, "b": Z}),
    ((A, Z), One, 2, (A,), Z),
    (((A, B), Y), Two, 1, (A, B), Y),
    ((A, B, Y), Two, 1, (A, B), Y),
    (Given(A, B, Y), Two, 1, (A, B), Y),
    ((A, B, Y, Z), Two, 2, (A, B), (Y, Z)),
    ((A, B, (Y, Z)), Two, 2, (A, B), (Y, Z)),
    (({"attention_mask": B, "input_ids": A}, Y), Two, 1, (A, B), Y),
    ({"labels": Y, "attention_mask": B, "input_ids": A}, Two, 1, (A, B), Y),
    ({"labels": Y, "attention_mask": B, "input_ids": A, "idx": Z}, Two, 1, (A, B), Y),
    ({"own": Y, "attention_mask": B, "input_ids": A}, Two, 1, (A, B), Y),
    ({"a": Y, "b": Z, "input_ids": A, "attention_mask": B}, Two, 2, (A, B), {"a": Y, "b": Z}),
    ({"image": A, "label": Y}, One, 1, (A,), Y),
    ({"pixel_values": A, "label": Y}, One, 1, (A,), Y),
    ((A, Y), Perhaps, 1, (A,), Y),
    ((A, B, Y), Perhaps, 1, (A, B), Y),
    ({"x": A, "y": Y}, Perhaps, 1, (A,), Y),
    ({"x": A, "mask": B, "y": Y}, Perhaps, 1, (A, B), Y),
    ({"input_ids": A, "mask": B, "labels": Y}, WithLoss, 1, (A, B), Y),
    ((A, Y), nn.Identity, 1, (A,), Y),
    ((A, B, Y), Several, 1, (A, B), Y),
]  # fmt: skip


@pytest.mark.parametrize(("batch", "kind", "outputs", "inputs", "labels"), READ)
def test_a_form_has_one_reading(
    batch: Any, kind: type[Takes], outputs: int, inputs: tuple[Tensor, ...], labels: Any
) -> None:
    found, given = parted(batch, kind(), outputs)
    assert [id(item) for item in found] == [id(item) for item in inputs]
    assert repr(given) == repr(labels)


@pytest.mark.parametrize(("batch", "kind"), [
    (A, One), ((A,), One), ((A, Y), Two), (((A,), Y), Two), (((A, B), Y), One),
    ({"input_ids": A, "labels": Y}, Two), ({"image": A}, One), ({"image": A, "a": Y, "b": Z}, One),
    (("words", Y), One), ({"attention_mask": A, "labels": Y}, Two), (None, One),
])  # fmt: skip
def test_where_it_cannot_be_told_the_forms_are_shown(batch: Any, kind: type[Takes]) -> None:
    with pytest.raises(UsageError, match=r"forward\(.*\(a, b, y\), \(\(a, b\), y\)"):
        parted(batch, kind(), 1)


class Pair(nn.Module):
    """Two inputs and two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(3, 4), nn.Linear(2, 4)
        self.cls, self.reg = nn.Linear(4, CLASSES), nn.Linear(4, 2)

    def forward(self, a: Tensor, b: Tensor) -> dict[str, Tensor]:
        hidden = torch.tanh(self.left(a) + self.right(b))
        return {"cls": self.cls(hidden), "reg": self.reg(hidden)}


FORMS: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Any]] = {
    "flat": lambda a, b, c, r: (a, b, c, r),
    "nested": lambda a, b, c, r: ((a, b), (c, r)),
    "named": lambda a, b, c, r: {"reg": r, "b": b, "cls": c, "a": a},
    "half named": lambda a, b, c, r: ({"b": b, "a": a}, {"reg": r, "cls": c}),
}
WHOLE, BY_PARTS = "private.step(batch)", "private.step(*batch)"
BY_HAND = "a, b, classes, numbers = batch; optimizer.zero_grad()\n" + (
    "criterion(model(a, b=b), (classes, numbers)).backward(); optimizer.step()"
)
BY_KEYWORDS = "labels = {name: batch[name] for name in ('reg', 'cls')}; optimizer.zero_grad()\n" + (
    "criterion(model(b=batch['b'], a=batch['a']), labels).backward(); optimizer.step()"
)


class Formed(Dataset[Any]):
    """The same examples in one of the forms."""

    def __init__(self, form: Callable[..., Any]) -> None:
        random = torch.Generator().manual_seed(0)
        self.form = form
        self.parts = (
            *(torch.rand(EXAMPLES, 3, generator=random), torch.rand(EXAMPLES, 2, generator=random)),
            torch.randint(CLASSES, (EXAMPLES,), generator=random),
            torch.rand(EXAMPLES, 2, generator=random) / 2.0,
        )

    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, index: int) -> Any:
        return self.form(*(part[index] for part in self.parts))


def trained_on(form: str, loop: str) -> list[Tensor]:
    mechanism = GradientClipping(
        clip_norm=0.5, input_box=(0.0, 1.0),
        loss=Loss({"cls": "cross-entropy", "reg": "mse"}, label_norm=1.0),
    )  # fmt: skip
    given: Any = Formed(FORMS[form])
    with private_run(None, mechanism, network=Pair, examples=given, record_every=None) as private:
        for batch in private.loader:
            lines(private, loop, batch=batch)
    assert private.releases == 6
    return [item.detach() for item in private.model.parameters()]


def test_all_forms_and_loops_train_alike() -> None:
    loops = [
        *((form, WHOLE) for form in FORMS),
        *((form, BY_PARTS) for form in ("flat", "nested", "half named")),
        *(("flat", BY_HAND), ("named", BY_KEYWORDS)),
    ]  # fmt: skip
    first, *others = [trained_on(form, loop) for form, loop in loops]
    for other in others:
        assert all(map(torch.equal, first, other))


def test_keywords_that_are_no_inputs_are_refused() -> None:
    mechanism = GradientClipping(clip_norm=0.5, input_norm=1.0)
    private = private_run(None, mechanism, record_every=None)
    x, _ = next(iter(private.loader))
    for wrong in ({"y": x}, {"x": x, "y": x}):
        with pytest.raises(UsageError, match="and nothing else"):
            private.model(**wrong)


@pytest.mark.parametrize("radius", [1e-21, 1.0, 1e15])
def test_only_examples_within_the_radius_enter(radius: float) -> None:
    """Also where float32 takes every square for 0, or cannot tell the norm from the radius."""
    settings = Settings(input_norm=radius)
    x = torch.full((2, 1000), radius * 1000**-0.5)
    assert admitted(0.99 * x, settings).equal(0.99 * x)
    entered = admitted(x, settings).double().norm(dim=1)
    assert bool((entered <= radius).all())
    with pytest.raises(NoVerdictError, match="example 0 of the batch"):
        admitted(1.001 * x, settings)
