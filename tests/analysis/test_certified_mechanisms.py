"""Certificates of backpropagation clipping and of weight clipping, on small files."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from lipcert import ConstraintSpec, NoVerdictError, Settings, load_model
from lipcert.analysis.bounded import bounded
from lipcert.analysis.certificate import Issued, certify
from lipcert.audit.bounds import claims_of_certificate, settings_of
from lipcert.core.certificate import Certificate, read_certificate
from lipcert.core.check import Choices, check
from lipcert.core.ledger.premises import Premises
from lipcert.core.text import promise
from lipcert.core.verdict import Report, Verdict
from lipcert.errors import UnsupportedModelError
from lipcert.text.certificate import write_certificate
from tests.core.lower.cases import model as onnx_model
from tests.core.mutants.assumptions import rewritten
from tests.plans import planned

RUN = planned(1000, 50, 1.5, steps=60) | {"sampling": "shuffle", "neighbours": "zero-out"}
CLIPS = {"mechanism": "backprop-clipping", "input_clip": 0.5, "cotangent_clip": 0.25}
SCALED = {
    "mechanism": "weight-clipping",
    "constraint": ConstraintSpec("spectral", 50.0),
    "bias_norm": 50.0,
}


def saved(folder, *, padding: str = "zeros"):
    """Two convolutions, the first with a bias, a layer normalisation, and a classifier."""
    rng = np.random.default_rng(3)

    def tensor(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) / 3).astype(np.float32)

    first = 'c = Conv<pads=[1, 1, 1, 1]>(x, "first.weight", "first.bias")'
    if padding != "zeros":
        first = f'p = Pad<mode="{padding}">(x, pads)  c = Conv(p, "first.weight", "first.bias")'
    proto = onnx_model(
        f"""{first}  r = Relu(c)  d = Conv<pads=[1, 1, 1, 1]>(r, "second.weight")  f = Flatten(d)
        n = LayerNormalization<epsilon=0.1>(f, "norm.weight", "norm.bias")
        m = MatMul(n, "last.weight")  y = Add(m, "last.bias")""",
        ["N", 1, 4, 4],
        {
            "first.weight": tensor(2, 1, 3, 3),
            "first.bias": tensor(2),
            "second.weight": tensor(2, 2, 3, 3),
            "norm.weight": tensor(32),
            "norm.bias": tensor(32),
            "last.weight": tensor(32, 3),
            "last.bias": tensor(3),
            **({"pads": [0, 0, 1, 1, 0, 0, 1, 1]} if padding != "zeros" else {}),
        },
    )
    path = folder / f"{padding}.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def issued(path, **settings: object) -> Issued:
    model = load_model(path, trusted=True)
    return certify(model, Settings(input_norm=1.0, tier="quick", **settings))  # type: ignore[arg-type]


def again(certificate: Certificate, path) -> Report:
    return check(write_certificate(certificate), path, Choices())


def bounds(found: Issued) -> dict[str, float]:
    return {claim.name: claim.grad_norm for claim in found.certificate.parameters}


def ends(clip):
    return [layer.ends for layer in clip.layers]


def settings_kept(found: Issued, **settings: object) -> None:
    """What an audit reads from the certificate is what was asked for."""
    read = settings_of(read_certificate(found.data), found.analysis.model.path)
    for name, value in settings.items():
        if name not in {"constraint", "bias_norm", "steps"}:
            assert getattr(read, name) == value, name


@pytest.mark.parametrize("conv_clip", ["l1.5", "l2"])
def test_clipped_backpropagation_has_the_bounds_of_the_analysis(tmp_path, conv_clip) -> None:
    path = saved(tmp_path)
    found = issued(path, **CLIPS, conv_clip=conv_clip, **RUN)
    assert found.report.verdict is Verdict.CONDITIONAL
    assert "A-POINT" not in found.report.open_assumptions
    assert found.certificate.scope.kind == "constraint-set"
    assert not found.certificate.scope.constraints
    analysed = {item.name: item.grad_norm for item in found.analysis.parameters}
    for name, bound in bounds(found).items():
        assert bound == pytest.approx(analysed[name], rel=1e-6)
    by_channel = conv_clip == "l1.5"
    assert bounds(found)["first.weight"] == pytest.approx(0.125 if by_channel else 0.375, rel=1e-6)
    assert bounds(found)["first.bias"] == pytest.approx(0.25 if by_channel else 1.0, rel=1e-6)
    assert bounds(found)["last.weight"] == pytest.approx(0.125, rel=1e-6)
    assert bounds(found)["norm.bias"] == pytest.approx(0.25, rel=1e-6)
    settings_kept(found, **CLIPS, conv_clip=conv_clip, **RUN)


def test_audits_of_clips_hold_weights_within_constraints_too(tmp_path) -> None:
    found = issued(saved(tmp_path), **CLIPS, constraint=ConstraintSpec("frobenius", 1.0), **RUN)
    held = settings_of(found.certificate, found.analysis.model.path).constraints
    assert {name for name, _ in held} == {
        f"{layer}.weight" for layer in ("first", "second", "norm", "last")
    }


def test_circular_padding_is_certified_and_other_borders_are_refused(tmp_path) -> None:
    found = issued(saved(tmp_path, padding="wrap"), **CLIPS)
    assert bounds(found)["first.weight"] == pytest.approx(0.125, rel=1e-6)
    clip = Premises.read(found.certificate.assumptions).layer_clip
    assert ends(clip) == [("x", "c"), ("r", "d"), ("f", "n"), ("n", "y")]
    for padding in ("reflect", "edge"):
        with pytest.raises(UnsupportedModelError, match="LC420"):
            issued(saved(tmp_path, padding=padding), **CLIPS)


def test_reflected_borders_do_not_get_the_published_bound(tmp_path) -> None:
    """The checker by itself: the certificate of circular padding for a file that reflects."""
    from tests.core.forged import Forgery

    wrapped = issued(saved(tmp_path, padding="wrap"), **CLIPS, batch_size=8)
    premises = Premises.read(wrapped.certificate.assumptions)
    trained = wrapped.certificate.scope.trained
    derived = {}
    for padding in ("wrap", "reflect", "edge"):
        path = saved(tmp_path, padding=padding)
        forged = Forgery(path, trained, premises, constraints=()).certificate()
        assert again(forged, path).verdict is Verdict.CONDITIONAL
        derived[padding] = next(
            claim.grad_norm for claim in forged.parameters if claim.name == "first.weight"
        )
    assert derived["wrap"] == 0.125
    assert derived["reflect"] == derived["edge"] == 0.25


LAYERED = {
    "mechanism": "backprop-clipping",
    "cotangent_clip": 0.25,
    "input_clips": (("second*", 0.5), ("last.bias", 2.0)),
    "cotangent_clips": (("norm", 0.125),),
}


def test_radii_of_single_layers_are_certified(tmp_path) -> None:
    """The first convolution reads an input of norm 1, the normalisation reads what comes; audits
    read the same radii from the certificate, by the parameters of the layers."""
    path = saved(tmp_path)
    found = issued(path, **LAYERED, **RUN)
    assert found.report.verdict is Verdict.CONDITIONAL
    clip = Premises.read(found.certificate.assumptions).layer_clip
    radii = [(clip.input_radius(item), clip.cotangent_radius(item)) for item in clip.layers]
    assert radii == [(None, 0.25), (0.5, 0.25), (None, 0.125), (2.0, 0.25)]
    assert bounds(found)["first.weight"] == pytest.approx(0.25, rel=1e-6)
    assert bounds(found)["second.weight"] == pytest.approx(0.125, rel=1e-6)
    assert bounds(found)["norm.bias"] == pytest.approx(0.125, rel=1e-6)
    assert bounds(found)["last.weight"] == pytest.approx(0.5, rel=1e-6)
    read = settings_of(read_certificate(found.data), found.analysis.model.path)
    model = load_model(path, trusted=True)
    assert bounded(model, read).premises.layer_clip == clip
    claimed = claims_of_certificate(model, found.certificate, "the certificate")
    assert [group.grad_norm for group in claimed.groups] == [
        claim.grad_norm for claim in found.certificate.groups
    ]


def test_an_input_of_any_length_has_no_bound_unless_it_is_clipped(tmp_path) -> None:
    path = saved(tmp_path)
    changed = {**LAYERED, "input_clips": LAYERED["input_clips"][:1]}
    with pytest.raises(NoVerdictError, match=r"last\.weight"):
        issued(path, **changed)
    frozen = issued(path, **changed, freeze=("norm.weight", "norm.bias"))
    assert bounds(frozen)["last.weight"] == pytest.approx(0.25 * behind_norm(path), rel=1e-6)


def behind_norm(path) -> float:
    """An upper bound of what the normalisation with its numbers computes: √32·γ and the shift."""
    stored = {item.name: numpy_helper.to_array(item) for item in onnx.load(path).graph.initializer}
    scale, shift = (stored[f"norm.{name}"].astype(float) for name in ("weight", "bias"))
    return float(np.abs(scale).max()) * 32**0.5 + float(np.linalg.norm(shift))


def test_a_certificate_whose_layers_no_settings_can_state_is_not_audited(tmp_path) -> None:
    """It may be valid all the same: here, a layer that is trained does not clip."""
    path = saved(tmp_path)
    found = issued(path, **{**LAYERED, "cotangent_clips": ()}).certificate
    premises = Premises.read(found.assumptions)
    clip = premises.layer_clip
    fewer = replace(premises, mechanism=replace(clip, layers=clip.layers[1:]))
    model = load_model(path, trusted=True)
    with pytest.raises(NoVerdictError, match="cannot be stated as settings"):
        claims_of_certificate(model, rewritten(found, fewer), "the certificate")


def test_frozen_layers_do_not_clip(tmp_path) -> None:
    found = issued(saved(tmp_path), **CLIPS, freeze=("second.*", "norm.*"))
    clip = Premises.read(found.certificate.assumptions).layer_clip
    assert ends(clip) == [("x", "c"), ("n", "y")]
    assert found.report.verdict is Verdict.CONDITIONAL


def test_clips_at_the_weights_of_the_file(tmp_path) -> None:
    """Values are known then as well, and a run needs weights that stay."""
    free = issued(saved(tmp_path), **CLIPS, **RUN)
    fixed = issued(saved(tmp_path), **CLIPS, scope="point", **RUN)
    assert "A-POINT" in fixed.report.open_assumptions
    assert fixed.certificate.network.grad_norm <= free.certificate.network.grad_norm * (1 + 1e-9)
    assert fixed.certificate.network.lipschitz is not None
    assert "layers clip what they read" in " ".join(promise(fixed.report))
    settings_kept(fixed, **CLIPS, scope="point")


def test_a_product_and_its_bias_are_one_layer_whatever_their_names(tmp_path) -> None:
    proto = onnx.load(saved(tmp_path))
    for tensor in proto.graph.initializer:
        tensor.name = tensor.name.replace("last.bias", "other.bias")
    proto.graph.node[-1].input[1] = "other.bias"
    path = tmp_path / "apart.onnx"
    path.write_bytes(proto.SerializeToString())
    clip = Premises.read(issued(path, **CLIPS).certificate.assumptions).layer_clip
    assert ends(clip)[-1] == ("n", "y")


def test_weight_clipping_is_certified_step_by_step(tmp_path) -> None:
    path = saved(tmp_path)
    found = issued(path, **SCALED, **RUN)
    assert found.report.verdict is Verdict.CONDITIONAL
    assert {"A-STEPWISE", "A-MECHANISM"} <= set(found.report.open_assumptions)
    assert not {"A-POINT", "A-PROJ"} & set(found.report.open_assumptions)
    assert found.certificate.scope.kind == "point"
    assert len(found.certificate.scope.constraints) == 7
    none = issued(path, **RUN)
    assert bounds(found) == bounds(none)
    assert found.certificate.privacy == none.certificate.privacy
    settings_kept(found, mechanism="weight-clipping", scope="point", **RUN)
    kept = dict(settings_of(found.certificate, found.analysis.model.path).constraints)
    assert kept["first.weight"] == ConstraintSpec("spectral", 50.0)
    assert kept["first.bias"] == ConstraintSpec("frobenius", 50.0)


def test_epsilon_is_that_of_the_stated_multiplier(tmp_path) -> None:
    """A smaller one must cost more; without it, a run of weights that move has no epsilon."""
    path = saved(tmp_path)
    certificate = issued(path, **SCALED, **RUN).certificate
    premises = Premises.read(certificate.assumptions)
    assert premises.stepwise == 1.5
    for stepwise, accepted in ((1.5, True), (2.0, True), (1.49, False), (0.0, False)):
        changed = rewritten(certificate, replace(premises, stepwise=stepwise))
        assert (again(changed, path).verdict is Verdict.CONDITIONAL) is accepted
    bare = tuple(item for item in certificate.assumptions if item.id != "A-STEPWISE")
    report = again(replace(certificate, assumptions=bare), path)
    assert (report.verdict, report.stages[-1].number) == (Verdict.INVALID, 8)


@pytest.mark.parametrize("tensor", ["last.weight", "first.bias", "first.weight", "norm.weight"])
def test_weights_beyond_their_radius_are_to_be_clipped_first(tmp_path, tensor) -> None:
    proto = onnx.load(saved(tmp_path))
    for item in proto.graph.initializer:
        if item.name == tensor:
            item.CopyFrom(numpy_helper.from_array(200 * numpy_helper.to_array(item), item.name))
    path = tmp_path / "large.onnx"
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(NoVerdictError, match=f"'{tensor}'.*scale the weights down first"):
        issued(path, **SCALED)
    over_the_set = issued(path, **SCALED, scope="constraint-set")
    assert over_the_set.report.verdict is Verdict.CONDITIONAL


def test_the_checker_itself_finds_weights_beyond_their_radius(tmp_path) -> None:
    path = saved(tmp_path)
    certificate = issued(path, **SCALED).certificate
    for index, constraint in enumerate(certificate.scope.constraints):
        held = list(certificate.scope.constraints)
        held[index] = replace(constraint, radius=1e-3)
        changed = replace(certificate, scope=replace(certificate.scope, constraints=tuple(held)))
        report = again(changed, path)
        assert report.stages[-1].number == 9
        assert report.verdict in {Verdict.INVALID, Verdict.UNKNOWN}


def test_weight_clipping_over_its_constraints_says_what_it_is(tmp_path) -> None:
    path = saved(tmp_path)
    found = issued(path, **SCALED, scope="constraint-set", **RUN)
    clipless = issued(path, **{**SCALED, "mechanism": "clipless"}, **RUN)
    assert "A-PROJ" in found.report.open_assumptions
    assert bounds(found) == bounds(clipless)
    settings_kept(found, mechanism="weight-clipping", scope="constraint-set")
