"""Mutants of sound models: bytes changed at random, and fields exchanged.

`python -m tests.hostile.mutations COUNT` imports that many and shows every exception that is not
one of the two that a file may cause.
"""

import random
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from onnx import ModelProto, helper

from lipcert.errors import ModelFileError, UnsupportedModelError
from lipcert.importer.load import load_model
from tests.conformance.networks import models, network
from tests.hostile.kinds import functions

node = helper.make_node
SHAPES = (
    "inputs x:2,3",
    "weights bias:1,1",
    "constants zero=0 axes=[0] rest=[6] from=[1] end=[5] ax=[1] pads=[0,1,0,1] wide=[1,6]",
    "Shape x",
    "Gather v0 zero axis=0",
    "Unsqueeze v1 axes",
    "Concat v2 rest axis=0",
    "Reshape x v3",
    "Slice v4 from end ax",
    "Pad v5 pads mode=constant",
    "Expand bias wide",
    "Mul v6 v7",
)
"""as in tests/conformance/networks.txt"""
NUMBERS = (0, 1, -1, 2, 3, 7, 17, 2**31 - 1, -(2**31), 2**40, -(2**63), 2**63 - 1)


SEEDS = (
    *map(models().get, ("convolution", "normalized", "attention")),
    network(SHAPES),
    functions({"f0": ["f1", "Relu"], "f1": ["Relu"]}).SerializeToString(),
)


def mutant(seed: int) -> bytes:
    """The mutant of this number."""
    chance = random.Random(seed)
    content = chance.choice(SEEDS)
    if chance.random() < 0.4:
        return _with_changed_bytes(content, chance)
    proto = ModelProto()
    proto.ParseFromString(content)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        _change(proto, chance)
    return proto.SerializeToString()


def _with_changed_bytes(content: bytes, chance: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(min(chance.choice((1, 1, 2, 4)), len(changed))):
        place = chance.randrange(len(changed))
        match chance.randrange(4):
            case 0:
                changed[place] ^= 1 << chance.randrange(8)
            case 1:
                changed[place] = chance.randrange(256)
            case 2:
                changed[place : place + chance.randrange(1, 4)] = b"\0"
            case 3:
                start = chance.randrange(len(changed))
                changed[place:place] = changed[start : start + chance.randrange(1, 16)]
    return bytes(changed)


def _change(proto: ModelProto, chance: random.Random) -> None:
    """Change one field somewhere in the message."""
    messages = list(_messages(proto))
    message = chance.choice(messages)
    fields = message.ListFields()
    if not fields:
        return
    field, value = chance.choice(fields)
    if not isinstance(value, (Message, str, bytes, int, float)):
        _change_list(field, value, chance)
    elif field.type == FieldDescriptor.TYPE_MESSAGE or chance.random() < 0.1:
        message.ClearField(field.name)
    elif field.type == FieldDescriptor.TYPE_STRING:
        setattr(message, field.name, chance.choice(_words(messages)))
    elif field.type == FieldDescriptor.TYPE_BYTES:
        setattr(message, field.name, _with_changed_bytes(value or b"\0", chance))
    else:
        _try_to_set(message, field.name, chance)


def _change_list(field: FieldDescriptor, values: object, chance: random.Random) -> None:
    place = chance.randrange(len(values))
    match chance.randrange(3):
        case 0:
            del values[place]
        case 1:
            other = chance.randrange(len(values))
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                kept = type(values[place])()
                kept.CopyFrom(values[place])
                values[place].CopyFrom(values[other])
                values[other].CopyFrom(kept)
            else:
                values[place], values[other] = values[other], values[place]
        case 2:
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                values.append(values[place])
            elif isinstance(values[place], int):
                values[place] = chance.choice([n for n in NUMBERS if abs(n) < 2**31])
            else:
                values.append(values[place])


def _try_to_set(message: Message, name: str, chance: random.Random) -> None:
    for _ in range(10):
        try:
            setattr(message, name, chance.choice(NUMBERS))
            return
        except (ValueError, TypeError):
            continue


def _messages(message: Message):
    yield message
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for item in [value] if isinstance(value, Message) else value:
                yield from _messages(item)


def _words(messages: list[Message]) -> list[str]:
    words = ["", "Identity", "Loop", "ai.onnx"]
    for message in messages:
        for field, value in message.ListFields():
            if field.type == FieldDescriptor.TYPE_STRING:
                words += [value] if isinstance(value, str) else list(value)
    return words


def attempt(seed: int, path: Path, *, trusted: bool) -> str:
    """Import one mutant: "imported" or the code of its refusal; any other exception leaves."""
    path.write_bytes(mutant(seed))
    try:
        load_model(path, trusted=trusted)
    except (ModelFileError, UnsupportedModelError) as error:
        return error.refusals[0].code
    return "imported"


def main() -> None:
    """Import the mutants of numbers [FIRST, FIRST + COUNT)."""
    count, first, *_ = [*map(int, sys.argv[1:]), 0]
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(first, first + count):
            try:
                outcomes[attempt(seed, Path(folder) / "model.onnx", trusted=False)] += 1
            except Exception:  # noqa: BLE001  shown, that is the purpose
                outcomes["FAULT"] += 1
                print(seed, traceback.format_exc().strip().splitlines()[-1], flush=True)  # noqa: T201
    print(dict(outcomes))  # noqa: T201


if __name__ == "__main__":
    main()
