"""Write models, certificates and expected verdicts anew: `python -m tests.conformance.make`.

Good certificates are those that `certify` issues. Every other one follows from a good one by a
change that makes it say something else than what follows from the model, or nothing at all; its
verdict stands here and is not asked of the checker.
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import numpy_helper

from lipcert.analysis.certificate import certify
from lipcert.core.canonical import Json
from lipcert.importer.load import load_model
from lipcert.settings.settings import ConstraintSpec, Settings
from tests.core.mutants.networks import network

HERE: Final = Path(__file__).parent
SLIGHTLY: Final = 2.0**-20
"""how much a claim is changed, relatively; `certify` claims 2^-24 more than what follows"""
RUN: Final[Mapping[str, object]] = {
    "dataset_size": 400,
    "batch_size": 16,
    "steps": 30,
    "delta": 1e-5,
    "noise_multiplier": 2.0,
}
SHUFFLED: Final[Mapping[str, object]] = {**RUN, "sampling": "shuffle", "neighbours": "zero-out"}


def perceptron() -> bytes:
    """Two matrices with biases, ReLU between them."""
    return network(
        {"w0": (6, 5), "b0": (6,), "w1": (3, 6), "b1": (3,)},
        (5,),
        ("Gemm", ["x", "w0", "b0"], {"transB": 1}),
        ("Relu", ["v0"], {}),
        ("Gemm", ["v1", "w1", "b1"], {"transB": 1}),
    )


def convolution() -> bytes:
    """Two convolutions, a maximum over windows, a matrix."""
    return network(
        {"k0": (2, 1, 3, 3), "b0": (2,), "k1": (2, 2, 3, 3), "w": (3, 8)},
        (1, 4, 4),
        ("Conv", ["x", "k0", "b0"], {"pads": [1, 1, 1, 1]}),
        ("Relu", ["v0"], {}),
        ("MaxPool", ["v1"], {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("Conv", ["v2", "k1"], {"pads": [1, 1, 1, 1]}),
        ("Tanh", ["v3"], {}),
        ("Flatten", ["v4"], {}),
        ("Gemm", ["v5", "w"], {"transB": 1}),
    )


def residual() -> bytes:
    """A convolution with batch normalization, and a block around which its input passes."""
    return network(
        {
            "k0": (2, 1, 3, 3),
            **dict.fromkeys(("scale", "shift", "mean", "variance"), (2,)),
            "k1": (2, 2, 3, 3),
            "k2": (2, 2, 1, 1),
            "w": (3, 2),
        },
        (1, 3, 3),
        ("Conv", ["x", "k0"], {"pads": [1, 1, 1, 1]}),
        ("BatchNormalization", ["v0", "scale", "shift", "mean", "variance"], {}),
        ("Relu", ["v1"], {}),
        ("Conv", ["v2", "k1"], {"pads": [1, 1, 1, 1]}),
        ("Relu", ["v3"], {}),
        ("Conv", ["v4", "k2"], {}),
        ("Add", ["v5", "v2"], {}),
        ("GlobalAveragePool", ["v6"], {}),
        ("Flatten", ["v7"], {}),
        ("Gemm", ["v8", "w"], {"transB": 1}),
    )


def attention() -> bytes:
    """Layer normalization, one head of attention around which its input passes, a matrix."""
    return network(
        {
            "scale": (4,),
            "shift": (4,),
            **dict.fromkeys(("query", "key", "value"), (4, 4)),
            "w": (12, 3),
        },
        (3, 4),
        ("LayerNormalization", ["x", "scale", "shift"], {"epsilon": 0.5}),
        ("MatMul", ["v0", "query"], {}),
        ("MatMul", ["v0", "key"], {}),
        ("MatMul", ["v0", "value"], {}),
        ("Transpose", ["v2"], {"perm": [0, 2, 1]}),
        ("MatMul", ["v1", "v4"], {}),
        ("Softmax", ["v5"], {"axis": -1}),
        ("MatMul", ["v6", "v3"], {}),
        ("Add", ["x", "v7"], {}),
        ("Flatten", ["v8"], {}),
        ("MatMul", ["v9", "w"], {}),
    )


MODELS: Final = {
    "perceptron": perceptron,
    "convolution": convolution,
    "residual": residual,
    "attention": attention,
}
GOOD: Final[Mapping[str, tuple[str, Mapping[str, object]]]] = {
    "perceptron": (
        "perceptron",
        {"batch_size": 16, "input_norm": 1.0, "loss": "mse", "label_norm": 1.0},
    ),
    "convolution": ("convolution", SHUFFLED),
    "residual": ("residual", {**SHUFFLED, "loss": "multi-margin"}),
    "attention": ("attention", SHUFFLED),
    "constraint-set": (
        "perceptron",
        {**SHUFFLED, "constraint": ConstraintSpec("spectral", 1.5),
         "bias_norm": 1.0},
    ),
    "gradient-clipping": (
        "perceptron",
        {**RUN, "sampling": "poisson", "mechanism": "gradient-clipping", "clip_norm": 1.0},
    ),
    "backprop-clipping": (
        "convolution",
        {**SHUFFLED, "mechanism": "backprop-clipping", "input_clip": 1.0, "cotangent_clip": 0.5,
         "scope": "constraint-set"},
    ),
    "layer-clips": (
        "convolution",
        {**SHUFFLED, "mechanism": "backprop-clipping", "input_box": (0.0, 1.0),
         "input_clips": {"k1": 1.0}, "cotangent_clips": {"w": 0.25, "*": 0.5}},
    ),
}  # fmt: skip
"""the model of each good certificate, and what it is certified for"""

Entry = dict[str, Any]


def main() -> None:
    """Replace everything in the folders."""
    for name in ("models", "certificates"):
        shutil.rmtree(HERE / name, ignore_errors=True)
        (HERE / name).mkdir()
    for name, model in MODELS.items():
        (HERE / f"models/{name}.onnx").write_bytes(model())
    entries: list[Entry] = []
    for name, (model, settings) in GOOD.items():
        path = HERE / f"models/{model}.onnx"
        imported = load_model(path, trusted=True)
        data = certify(imported, Settings(**settings)).data  # type: ignore[arg-type]
        (HERE / f"certificates/{name}.json").write_bytes(data)
        said = json.loads(data)
        ids = [item["id"] for item in said["assumptions"]]
        entries += [_entry(name, model, name, "conditional", 9)]
        entries += [_entry(f"{name}, all accepted", model, name, "valid", 9, accept=ids)]
        entries += _too_small(name, model, said)
    entries += [*_false_norms(), *_other_models(), *_wrong(), *_radii(), *_ill_spelt(), *_hostile()]
    lines = ",\n".join(json.dumps(entry, sort_keys=True) for entry in entries)
    (HERE / "expected.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def _entry(
    name: str, model: str, certificate: str, verdict: str, stage: int | None, **more: object
) -> Entry:
    return {
        "name": name,
        "model": f"models/{model}.onnx",
        "certificate": f"certificates/{certificate}.json",
        "verdict": verdict,
        "stage": stage,
        **more,
    }


# claims --------------------------------------------------------------------------------------


def _too_small(name: str, model: str, said: Any) -> Iterator[Entry]:
    """A claim by itself a little smaller than what follows from the model; noise claimed larger.

    Each of the perceptron, elsewhere the last of each kind.
    """
    numbers = [(path.rsplit("/", 1)[-1], path, number) for path, number in _numbers(said)]
    last = {kind: path for kind, path, number in numbers if float.fromhex(number) > 0.0}
    for kind, path, claim in numbers:
        if name != "perceptron" and path != last.get(kind):
            continue
        number = float.fromhex(claim)
        stage = {"output_norm": 4, "cotangent_norm": 5, "lipschitz": 5, "epsilon": 7}.get(kind, 6)
        changed = number * (1.0 - SLIGHTLY)
        if kind == "noise_multiplier":
            changed = number * (1.0 + SLIGHTLY)
        if kind == "epsilon":
            changed = 0.5 * number
        if number > 0.0:
            yield _entry(
                f"{name}: {path} too {'large' if changed > number else 'small'}",
                model, name, "invalid", stage,
                patch=[{"op": "replace", "path": path, "value": changed.hex()}],
            )  # fmt: skip


def _numbers(said: Any) -> Iterator[tuple[str, str]]:
    """Every claimed bound but norms of operators, which are claimed as they were found."""
    claims = {"/input": said["input"]} | {
        f"/nodes/{k}/claims/{n}": claim
        for k, node in enumerate(said["nodes"])
        for n, claim in enumerate(node["claims"])
    }
    for place, claim in claims.items():
        for kind in ("output_norm", "cotangent_norm"):
            if kind in claim:
                yield f"{place}/{kind}", claim[kind]
    outputs = said["outputs"]
    for k, claim in enumerate(outputs["parameters"]):
        yield f"/outputs/parameters/{k}/grad_norm", claim["grad_norm"]
    for k, claim in enumerate(outputs["groups"]):
        for kind in ("grad_norm", "sensitivity", "noise_std"):
            yield f"/outputs/groups/{k}/{kind}", claim[kind]
    for kind, number in outputs["network"].items():
        yield f"/outputs/network/{kind}", number
    if "privacy" in said:
        yield "/privacy/epsilon", said["privacy"]["epsilon"]


def _false_norms() -> Iterator[Entry]:
    """Below what one vector shows, or below the norm of the matrix that stands in the file."""
    model, said = "perceptron", _read("perceptron")
    tensors = {item.name: numpy_helper.to_array(item) for item in _onnx(model).graph.initializer}
    for k, name in ((0, "w0"), (2, "w1")):
        norm = float(np.linalg.norm(tensors[name].astype(np.float64), 2)) * (1.0 - SLIGHTLY)
        path = f"/nodes/{k}/claims/0/operator_norm/bound"
        yield _entry(
            f"false norm of {name}", model, model, "invalid", 3,
            patch=[{"op": "replace", "path": path, "value": norm.hex()}],
        )  # fmt: skip
        assert norm < float.fromhex(said["nodes"][k]["claims"][0]["operator_norm"]["bound"])
    model = "convolution"
    kernel = numpy_helper.to_array(_onnx(model).graph.initializer[0]).astype(np.float64)
    norm = 0.99 * float(np.linalg.norm(kernel[:, 0]))  # of the image of one entry in the middle
    yield _entry(
        "false norm of k0", model, model, "invalid", 3,
        patch=[{"op": "replace", "path": "/nodes/0/claims/0/operator_norm/bound",
                "value": norm.hex()}],
    )  # fmt: skip


# statements ----------------------------------------------------------------------------------


def _other_models() -> Iterator[Entry]:
    """The right certificate of another model, and of the same one saved again."""
    yield _entry("the model of another", "convolution", "perceptron", "invalid", 1)
    again = _onnx("perceptron")
    again.producer_name = "another exporter"
    _saved("saved-again", again)
    yield _entry("the same model saved again", "saved-again", "perceptron", "conditional", 9)
    again.graph.initializer[0].raw_data = (
        bytes([again.graph.initializer[0].raw_data[0] ^ 1])
        + (again.graph.initializer[0].raw_data[1:])
    )
    _saved("one-bit", again)
    yield _entry("one bit of a weight", "one-bit", "perceptron", "invalid", 1)


def _wrong() -> Iterator[Entry]:
    """Well spelt, and about something else."""
    said, swapped = _read("perceptron"), _read("perceptron")["nodes"]
    swapped[0], swapped[1] = swapped[1], swapped[0]
    digest = said["model"]["structure"]
    other = ("0" if digest[0] != "0" else "1") + digest[1:]
    ledger = {item["id"]: k for k, item in enumerate(said["assumptions"])}
    numeric = f"/assumptions/{ledger['A-NUMERIC']}"
    rule = said["nodes"][1]["claims"][0]["rule"]
    sha = said["model"]["sha256"]
    for name, verdict, stage, *patch in (
        ("wrong digest of the structure", "invalid", 1, _put("/model/structure", other)),
        ("another file of the same structure", "conditional", 9, _put("/model/sha256", sha[::-1])),
        ("another output", "invalid", 1, _put("/model/output", "v1")),
        ("missing node", "invalid", 2, {"op": "remove", "path": "/nodes/1"}),
        ("node twice", "invalid", 2, {"op": "add", "path": "/nodes/1", "value": said["nodes"][1]}),
        ("nodes in another order", "invalid", 2, _put("/nodes", swapped)),
        ("another operator", "invalid", 2, _put("/nodes/1/op", "Tanh")),
        ("another rule", "invalid", 2, _put("/nodes/1/claims/0/rule", f"{rule}0")),
        ("missing claim", "conditional", 9,
         {"op": "remove", "path": "/nodes/1/claims/0/output_norm"}),
        ("a node that is part of another", "invalid", 2, _put("/nodes/1/role", "part")),
        ("missing assumption", "invalid", 8, {"op": "remove", "path": numeric}),
        ("assumption in other words", "invalid", 8, _put(f"{numeric}/text", "Nothing.")),
        ("assumption said to be checked", "invalid", 8, _put(f"{numeric}/status", "checked")),
        ("parameter that is not trained", "invalid", 0,
         {"op": "remove", "path": "/scope/trained/0"}),
        ("parameter in no group", "invalid", 0,
         {"op": "remove", "path": "/outputs/groups/0/parameters/0"}),
        ("wrong size of a group", "invalid", 6, _put("/outputs/groups/0/dimension", 1)),
        ("unknown member", "invalid", 0, {"op": "add", "path": "/remark", "value": "trust me"}),
        ("unknown schema", "invalid", 0, _put("/schema", "lipcert.certificate/2")),
        ("unknown semantics", "invalid", 0, _put("/model/semantics", "lipcert-ir/0")),
    ):  # fmt: skip
        yield _entry(name, "perceptron", "perceptron", verdict, stage, patch=patch)
    radius = "/scope/constraints/0/radius"
    yield _entry(
        "larger constraint", "perceptron", "constraint-set", "invalid", None,
        patch=[_put(radius, 1.75.hex())],
    )  # fmt: skip
    yield from _nonsense()


def _radii() -> Iterator[Entry]:
    """Of single layers that clip: the first reads the input, the last what is behind a tanh."""
    name = "layer-clips"
    ids = [item["id"] for item in _read(name)["assumptions"]]
    layers = f"/assumptions/{ids.index('A-LAYERS')}/data/layers"
    mechanism = f"/assumptions/{ids.index('A-MECHANISM')}/data"
    half, two = (0.5).hex(), (2.0).hex()
    for what, verdict, stage, patch in (
        ("no clip of an input without a bound", "invalid", 6,
         {"op": "remove", "path": f"{layers}/1/input_clip"}),
        ("larger radius of an input", "invalid", None, _put(f"{layers}/1/input_clip", two)),
        ("smaller radius of an input", "conditional", 9, _put(f"{layers}/1/input_clip", half)),
        ("larger radius of a cotangent", "invalid", None,
         _put(f"{layers}/2/cotangent_clip", half)),
        ("negative radius", "invalid", 0, _put(f"{layers}/1/input_clip", (-1.0).hex())),
        ("a layer without a radius of its cotangent", "invalid", 0,
         {"op": "remove", "path": f"{layers}/2/cotangent_clip"}),
        ("a radius of all inputs besides that of one", "invalid", 0,
         {"op": "add", "path": f"{mechanism}/input_clip", "value": two}),
        ("a radius of all cotangents besides those of each", "invalid", 0,
         {"op": "add", "path": f"{mechanism}/cotangent_clip", "value": half}),
    ):  # fmt: skip
        yield _entry(what, "convolution", name, verdict, stage, patch=[patch])


def _nonsense() -> Iterator[Entry]:
    """Chains that do not prove what they are there for, or nothing."""
    name = "convolution"
    chains = _read(name)["witnesses"]["chains"]
    k = next(k for k, chain in enumerate(chains) if chain["use"] == "cotangents")
    path = f"/witnesses/chains/{k}"
    rows = chains[k]["multipliers"]
    for what, stage, patch in (
        ("zero", None, _put(f"{path}/multipliers", _all(rows, (0.0).hex()))),
        ("huge", None, _put(f"{path}/multipliers", _all(rows, (2.0**1000).hex()))),
        ("negative", 0, _put(f"{path}/multipliers", _all(rows, (-1.0).hex()))),
        ("missing", None, {"op": "remove", "path": f"{path}/multipliers/0/entries/0"}),
        ("absent", None, _put(f"{path}/multipliers", [])),
    ):
        yield _entry(f"{what} multipliers", name, name, "invalid", stage, patch=[patch])
    yield _entry(
        "a chain that runs backwards", name, name, "invalid", None,
        patch=[_put(f"{path}/start", chains[k]["stop"]), _put(f"{path}/stop", chains[k]["start"])],
    )  # fmt: skip
    twice = {"op": "add", "path": path, "value": chains[k]}
    yield _entry("a chain twice", name, name, "invalid", 0, patch=[twice])


def _all(rows: Any, number: str) -> Json:
    return [{"entries": [number for _ in row["entries"]]} for row in rows]


def _put(path: str, value: object) -> dict[str, object]:
    return {"op": "replace", "path": path, "value": value}


# bytes ---------------------------------------------------------------------------------------


def _ill_spelt() -> Iterator[Entry]:
    """The same members in bytes that are not their one spelling."""
    data = (HERE / "certificates/perceptron.json").read_bytes()
    said = json.loads(data)
    bound = said["outputs"]["network"]["grad_norm"]
    quoted = f'"grad_norm":"{bound}"'.encode()
    assert quoted in data
    for name, changed in {
        "duplicate-key": data[:-1] + b',"schema":"lipcert.certificate/1"}',
        "float-number": data.replace(quoted, f'"grad_norm":{float.fromhex(bound)!r}'.encode()),
        "decimal-number": data.replace(quoted, f'"grad_norm":"{float.fromhex(bound)!r}"'.encode()),
        "short-hexadecimal": data.replace(quoted, b'"grad_norm":"0x1p+20"'),
        "infinite": data.replace(quoted, b'"grad_norm":"inf"'),
        "null": data.replace(quoted, b'"grad_norm":null'),
        "trailing-line": data + b"\n",
        "blanks": json.dumps(said, sort_keys=True).encode(),
        "unsorted": json.dumps(dict(reversed(said.items())), separators=(",", ":")).encode(),
        "byte-order-mark": b"\xef\xbb\xbf" + data,
        "escaped": data.replace(b'"perceptron', b'"\\u0070erceptron').replace(
            b'"schema"', b'"\\u0073chema"'
        ),
        "minus-zero": data.replace(b'"dimension":', b'"dimension":-0,"dimension":', 1),
    }.items():
        assert changed != data
        (HERE / f"certificates/{name}.json").write_bytes(changed)
        yield _entry(name, "perceptron", name, "invalid", 0)


def _hostile() -> Iterator[Entry]:
    """Made to break a reader, to make it wait, or to have it open another file."""
    data = (HERE / "certificates/perceptron.json").read_bytes()
    torus = {"bound": (1.0).hex(), "method": "torus", "twists": [1 << 53], "counts": [1 << 53]}
    for name, changed in {
        "empty": b"",
        "truncated": data[: len(data) // 2],
        "nested": b"[" * 2_000,
        "nested-objects": b'{"a":' * 2_000 + b"1" + b"}" * 2_000,
        "huge-integer": data.replace(b'"size":', b'"size":' + b"9" * 5_000, 1),
        "huge-exponent": data.replace(b"0x1.0000000000000p+0", b"0x1.0000000000000p+99999", 1),
        "no-text": bytes(range(256)),
        "half-a-pair": data.replace(b'"lipcert"', b'"\\ud800"', 1),
        "array": b"[]",
    }.items():
        assert changed != data
        (HERE / f"certificates/{name}.json").write_bytes(changed)
        yield _entry(name, "perceptron", name, "invalid", 0)
    yield _entry(
        "a torus of 2^53 frequencies", "convolution", "convolution", "invalid", 3,
        patch=[_put("/nodes/0/claims/0/operator_norm", torus)],
    )  # fmt: skip
    ends = [(f"v{k}", f"v{n}") for k in range(8) for n in range(8)]
    many = [{"use": "values", "start": k, "stop": n, "multipliers": []} for k, n in ends]
    yield _entry(
        "more chains than the model has uses for", "convolution", "convolution", "invalid", 2,
        patch=[_put("/witnesses/chains", many)],
    )  # fmt: skip
    content = (HERE / "models/perceptron.onnx").read_bytes()
    for name, changed in {"cut": content[:-9], "nothing": b"", "noise": bytes(range(256))}.items():
        (HERE / f"models/{name}.onnx").write_bytes(changed)
        yield _entry(f"a model file: {name}", name, "perceptron", "unknown", 1)
    yield from _outside()


def _outside() -> Iterator[Entry]:
    """Weights in a file beside the model, behind a link, in another folder, and not there."""
    for name, location, verdict, stage in (
        ("external", "weights.bin", "conditional", 9),
        ("external-link", "link.bin", "unknown", 1),
        ("external-above", "../models/weights.bin", "unknown", 1),
        ("external-absent", "absent.bin", "unknown", 1),
    ):
        model, content = _onnx("perceptron"), b""
        for tensor in model.graph.initializer:
            raw = tensor.raw_data
            for key, value in (
                ("location", location),
                ("offset", len(content)),
                ("length", len(raw)),
            ):
                tensor.external_data.add(key=key, value=str(value))
            tensor.ClearField("raw_data")
            tensor.data_location = onnx.TensorProto.EXTERNAL
            content += raw
        _saved(name, model)
        (HERE / "models/weights.bin").write_bytes(content)
        yield _entry(f"weights in a file: {name}", name, "perceptron", verdict, stage)
    (HERE / "models/link.bin").symlink_to("weights.bin")


def _read(name: str) -> Any:
    return copy.deepcopy(json.loads((HERE / f"certificates/{name}.json").read_bytes()))


def _onnx(name: str) -> onnx.ModelProto:
    return onnx.load(HERE / f"models/{name}.onnx")


def _saved(name: str, model: onnx.ModelProto) -> None:
    (HERE / f"models/{name}.onnx").write_bytes(model.SerializeToString())


if __name__ == "__main__":
    main()
