"""Networks with several inputs: certified, checked, and audited, input by input."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import lipcert
from lipcert.audit.attack import proposals
from lipcert.audit.bounds import claims_of_analysis
from lipcert.audit.prepared_job import random_examples
from lipcert.core.certificate import Certificate, read_certificate
from lipcert.core.check import Choices, check
from lipcert.core.ledger.premises import InputPart, Premises
from lipcert.core.program import Part
from lipcert.core.verdict import Verdict
from lipcert.data.opening import open_source
from lipcert.data.source import Columns
from lipcert.errors import NoVerdictError, UsageError
from lipcert.gradient_stats.examples import random_examples as measured_examples
from lipcert.settings.settings import Settings
from lipcert.text.certificate import write_certificate
from tests.commands import lipcert as command
from tests.core.mutants.assumptions import rewritten

ROWS = 12
STATED = ["--loss", "cross-entropy", "--input-norm", "tabular=2", "--input-box", "image=0", "1"]


class Patient(nn.Module):
    """An image, numbers, and words of which 0 is padding."""

    def __init__(self) -> None:
        super().__init__()
        self.pixels, self.numbers = nn.Linear(9, 4), nn.Linear(3, 4)
        self.words, self.head = nn.Embedding(ROWS, 4), nn.Linear(12, 3)

    def forward(self, image, tabular, report):
        shown = (report != 0).unsqueeze(-1).float()
        mean = (self.words(report) * shown).sum(1) / shown.sum(1).clamp(min=1.0)
        parts = self.pixels(image.flatten(1)).relu(), self.numbers(tabular).tanh(), mean
        return self.head(torch.cat(parts, dim=1))


def arrays(count: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    tabular = rng.standard_normal((count, 3))
    tabular *= 2.0 / np.maximum(np.linalg.norm(tabular, axis=1, keepdims=True), 2.0)
    return {
        "image": rng.random((count, 1, 3, 3), np.float32),
        "tabular": (0.999 * tabular).astype(np.float32),
        "report": rng.integers(0, ROWS, (count, 5)),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory):
    """A network, its certificate, and data."""
    place = tmp_path_factory.mktemp("patient")
    torch.manual_seed(0)
    example = tuple(torch.from_numpy(item[:1]) for item in arrays(1).values())
    lipcert.export(Patient(), example, place / "m.onnx")
    done = command(["certify", "m.onnx", *STATED, "-o", "m.lipcert.json"], place)
    assert done.exit_code == 0, done.output
    np.savez(place / "d.npz", **arrays(30), y=np.arange(30) % 3)
    return place


def verdict(folder, certificate: Certificate) -> Verdict:
    return check(write_certificate(certificate), folder / "m.onnx", Choices()).verdict


def test_a_certificate_stands_for_its_own_inputs_only(folder) -> None:
    """Wider, swapped, renamed, dropped, doubled, of another shape, or a box of all."""
    certificate = read_certificate((folder / "m.lipcert.json").read_bytes())
    premises = Premises.read(certificate.assumptions)
    image, tabular, report = premises.input_parts
    assert (tabular.norm, image.box, report.box) == (2.0, (0.0, 1.0), (0.0, ROWS - 1.0))
    assert verdict(folder, certificate) is Verdict.CONDITIONAL
    same = rewritten(certificate, premises)
    assert same.assumptions == certificate.assumptions
    wrong: dict[str, tuple[InputPart, ...]] = {
        "wider box": (replace(image, box=(0.0, 1.01)), tabular, report),
        "lower box": (replace(image, box=(-0.5, 1.0)), tabular, report),
        "no box": (replace(image, box=None), tabular, report),
        "longer": (image, replace(tabular, norm=2.01), report),
        "domains swapped": (
            replace(image, norm=tabular.norm, box=tabular.box),
            replace(tabular, norm=image.norm, box=image.box),
            report,
        ),
        "names swapped": (
            replace(image, name=tabular.name), replace(tabular, name=image.name), report
        ),
        "order": (tabular, image, report),
        "dropped": (image, tabular),
        "doubled": (image, tabular, report, report),
        "none": (),
        "shape": (replace(image, shape=(1, 9)), tabular, report),
    }  # fmt: skip
    for what, parts in wrong.items():
        changed = rewritten(certificate, replace(premises, input_parts=parts))
        assert verdict(folder, changed) is Verdict.INVALID, what
    joint = rewritten(certificate, replace(premises, input_norm=1.0))
    assert verdict(folder, joint) is Verdict.CONDITIONAL  # it assumes more
    boxed = rewritten(certificate, replace(premises, input_box=(0.0, 1.0)))
    assert verdict(folder, boxed) is Verdict.INVALID


def test_an_audit_of_the_certificate_passes_and_attacks_reach_a_share(folder) -> None:
    words = ["audit", "m.lipcert.json", "--model", "m.onnx", "--format", "json"]
    done = command([*words, "--data", "d.npz", "--attack", "pga", "--attack-steps", "5"], folder)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["verdict"] == "pass"
    groups = {group["name"] for group in found["groups"]}
    assert groups == {"pixels", "numbers", "words", "head"}


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("tabular", 30.0, "in its input 'tabular' has the norm"),
        ("image", 1.5, "in its input 'image' has the entry 1.5"),
        ("report", ROWS, f"in its input 'report' has the entry {ROWS}"),
    ],
)
def test_an_example_outside_of_one_domain_is_found(
    folder, tmp_path, name: str, value: float, why: str
) -> None:
    given = arrays(9)
    given[name][4].flat[0] = value
    np.savez(tmp_path / "d.npz", **given, y=np.arange(9) % 3)
    words = ["audit", "m.onnx", *STATED, "--data", str(tmp_path / "d.npz"), "--format", "json"]
    done = command(words, folder)
    assert done.exit_code == 1
    (finding,) = [item for item in json.loads(done.stdout)["diagnostics"] if "1 of 9" in str(item)]
    assert finding["code"] == "LC304"
    assert why in finding["message"]


def test_data_of_every_kind_are_put_side_by_side(tmp_path) -> None:
    """As the network reads them: files, mappings, tuples, and a loader of these."""
    given, y = arrays(7), np.arange(7)
    shapes = (("image", (1, 3, 3)), ("tabular", (3,)), ("report", (5,)))
    columns = Columns.of(None, None, shapes)
    wanted = np.concatenate([x.reshape(7, -1) for x in given.values()], axis=1)
    np.savez(tmp_path / "d.npz", **given, y=y)
    items = [(tuple(x[i] for x in given.values()), y[i]) for i in range(7)]
    tensors = [
        (tuple(torch.from_numpy(np.array(x)) for x in xs), int(label)) for xs, label in items
    ]
    loader = torch.utils.data.DataLoader(tensors, batch_size=3)
    for where in (
        str(tmp_path / "d.npz"), (tuple(given.values()), y), (given, y), items, loader,
        [{**{name: x[i] for name, x in given.items()}, "y": y[i]} for i in range(7)],
    ):  # fmt: skip
        blocks = list(open_source(where, columns).blocks())
        np.testing.assert_array_equal(np.concatenate([x for x, _ in blocks]), wanted)
        np.testing.assert_array_equal(np.concatenate([label for _, label in blocks]), y)
    np.savez(tmp_path / "e.npz", **dict(zip("abc", given.values(), strict=True)), y=y)
    found = open_source(str(tmp_path / "e.npz"), Columns.of("a,b,c", None, shapes))
    np.testing.assert_array_equal(next(found.blocks())[0], wanted)
    for wrong in (Columns.of("c,b,a", None, shapes), Columns.of("a,b", None, shapes), columns):
        with pytest.raises(NoVerdictError):
            next(open_source(str(tmp_path / "e.npz"), wrong).blocks())


def test_settings_name_inputs_of_the_model(folder) -> None:
    model = lipcert.load_model(folder / "m.onnx")
    stated = Settings(input_norm={"tabular": 2.0}, input_box={"": (-1, 1), "image": (0, 1)})
    found = stated.with_inputs(model.graph.inputs)
    parts = {part.name: (part.norm, part.box) for part in found.input_parts}
    assert parts == {"image": (None, (0.0, 1.0)), "tabular": (2.0, (-1.0, 1.0)),
                     "report": (None, (0.0, ROWS - 1.0))}  # fmt: skip
    assert found.with_inputs(model.graph.inputs) == found
    with pytest.raises(UsageError, match="tabular"):
        Settings(input_norm={"tabulr": 2.0}).with_inputs(model.graph.inputs)
    with pytest.raises(UsageError, match="a norm of ids has no meaning"):
        Settings(input_norm=2.0).with_inputs(model.graph.inputs)
    for key in ("input_norm", "input_box"):
        with pytest.raises(UsageError):
            Settings(**{key: {"image": -1.0}})
    users, items = Part("users", (1, 2), ids=4), Part("items", (1,), ids=9)
    known = Settings().with_inputs((users, items))
    assert [part.box for part in known.input_parts] == [(0.0, 3.0), (0.0, 8.0)]
    assert not known.input_is_assumed
    assert Settings().with_inputs((users, Part("ratings", (1, 2)))).input_is_assumed


def test_examples_of_an_attack_lie_in_every_domain(folder) -> None:
    model = lipcert.load_model(folder / "m.onnx")
    settings = Settings(input_norm={"tabular": 2.0}, input_box={"image": (0, 1)})
    domain = claims_of_analysis(model, settings).engine.domain
    random = np.random.default_rng(0)
    drawn, far = domain.drawn(40, random), domain.farthest(random.standard_normal((40, 17)))
    for x in (drawn, far, domain.projected(9 * drawn)):
        settled = domain.settled(x).astype(np.float64)
        assert all(map(domain.contains, settled))
        image, tabular, report = np.split(settled, [9, 12], axis=1)
        assert ((image >= 0.0) & (image <= 1.0)).all()
        assert (np.linalg.norm(tabular, axis=1) <= 2.0).all()
        assert (report == np.rint(report)).all()
        assert ((report >= 0) & (report < ROWS)).all()


class Masked(nn.Module):
    """The mean of what a mask of whole numbers shows; the mask chooses rows of no table."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, x, mask):
        shown = (mask != 0).unsqueeze(-1).float()
        return self.head((self.inner(x) * shown).sum(1) / shown.sum(1).clamp(min=1.0))


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory):
    path = tmp_path_factory.mktemp("masked") / "m.onnx"
    example = torch.zeros(1, 5, 3), torch.ones(1, 5, dtype=torch.int64)
    return lipcert.load_model(lipcert.export(Masked(), example, path))


@pytest.mark.parametrize(
    "given",
    [
        {"input_box": {"x": (-1, 1), "mask": (0, 1)}},
        {"input_box": {"x": (-1, 1), "mask": (-0.5, 1.5)}},
        {"input_box": {"x": (-1, 1), "mask": (0, 1)}, "input_norm": 2.0},
    ],
)
def test_masks_of_an_attack_are_whole_numbers(masked, given: dict) -> None:
    """A fraction is never compared equal, so that no example of fractions hides anything."""
    claims = claims_of_analysis(masked, Settings(loss="cross-entropy", **given))
    start = random_examples(claims, 40)
    (proposal,) = proposals(claims, None, start, 3, move_weights=False, device=torch.device("cpu"))
    found = claims.engine
    shapes = found.graph.input_shape, found.graph.output_shape
    drawn = measured_examples(shapes[0], found.domain, found.loss, shapes[1], 40)
    mask = proposal.examples.x.reshape(-1, 20)[:, 15:]
    assert np.isin(mask, (0.0, 1.0)).all()
    for examples in (start, drawn):
        x, mask = np.split(examples.x.reshape(40, 20), [15], axis=1)
        assert np.isin(mask, (0.0, 1.0)).all()
        assert (x != np.rint(x)).any()
        assert (mask == 0.0).any()
        assert (mask == 1.0).any()


@pytest.mark.parametrize("words", ["b,a", "a,a"])
def test_names_of_the_inputs_in_another_order_are_no_guess(words: str) -> None:
    """Inputs of one shape would be taken for each other, and no shape shows it."""
    columns = Columns.of(words, None, (("a", (3,)), ("b", (3,))))
    with pytest.raises(NoVerdictError, match="the model reads a, b"):
        columns.read_x({"a": np.zeros((2, 3)), "b": np.ones((2, 3))}, "d.npz")
