"""External data: tensors of a model that lie in other files of its folder.

What enters: a parsed model and the folder it lies in. What leaves: the same model with all
numbers inside, and the SHA-256 of each file that was read. Invariants: a file is opened only
below the folder and without following a link, read once and hashed as it was read; everything
else is refused (LC015) unread. Nothing is opened where the system cannot promise that.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final, final

from google.protobuf.message import Message
from onnx import ModelProto, TensorProto

from lipcert.diagnostics import EXPORT
from lipcert.errors import Refusal, UnsupportedModelError
from lipcert.importer.limits import MAX_FILE_BYTES

_KEYS: Final = frozenset({"location", "offset", "length"})
_REMEDY: Final = f"save the model in one file: {EXPORT}"


def embed_external_data(proto: ModelProto, folder: Path) -> dict[str, str]:
    """Move the numbers of every tensor into `proto`; digests of the files by location."""
    outside = [tensor for tensor in _tensors(proto) if _is_external(tensor)]
    if not outside:
        return {}
    budget = MAX_FILE_BYTES - proto.ByteSize()
    files = _Folder(folder, budget)
    refusals: list[Refusal] = []
    for tensor in outside:
        try:
            content = _content(tensor, files)
            budget -= len(content)
            if budget < 0:
                raise ValueError(f"the tensors hold more than {MAX_FILE_BYTES} bytes in all")
        except ValueError as error:
            reason = f"tensor {tensor.name!r}, external data: {error}"
            refusals.append(Refusal("LC015", "", "", reason, _REMEDY))
            continue
        tensor.raw_data = content
        tensor.ClearField("external_data")
        tensor.ClearField("data_location")
    if refusals:
        raise UnsupportedModelError(tuple(refusals))
    return files.digests


def _tensors(message: Message) -> Iterator[TensorProto]:
    """Every tensor at any depth of a message."""
    if isinstance(message, TensorProto):
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for item in [value] if isinstance(value, Message) else value:
                yield from _tensors(item)


def _is_external(tensor: TensorProto) -> bool:
    return tensor.data_location != TensorProto.DEFAULT or len(tensor.external_data) > 0


def _content(tensor: TensorProto, files: _Folder) -> bytes:
    """The bytes of one tensor; ValueError with the reason where they cannot be had."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    if tensor.data_location != TensorProto.EXTERNAL:
        raise ValueError("the tensor is not marked as external")
    if tensor.raw_data:
        raise ValueError("the tensor also has data inside")
    if len(entries) < len(tensor.external_data):
        raise ValueError("a key is given twice")
    unknown = sorted(set(entries) - _KEYS)
    if unknown:
        raise ValueError(f"the key {unknown[0]!r} is not known")
    whole = files.read(entries.get("location", ""))
    start = _count(entries.get("offset", "0"))
    length = _count(entries["length"]) if "length" in entries else len(whole) - start
    if not 0 <= start <= start + length <= len(whole):
        raise ValueError(f"the file has {len(whole)} bytes, fewer than the tensor claims")
    return whole[start : start + length]


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise ValueError(f"{text[:40]!r} is not a number of bytes")
    return int(text)


@final
class _Folder:
    """The files of one folder, each read once; ValueError with the reason where one is not."""

    def __init__(self, folder: Path, budget: int) -> None:
        self._folder = folder
        self._budget = budget
        self._contents: dict[str, bytes] = {}
        self.digests: dict[str, str] = {}

    def read(self, location: str) -> bytes:
        """The bytes of a file, by its path relative to the folder."""
        if location not in self._contents:
            content = self._opened(location)
            self._budget -= len(content)
            self._contents[location] = content
            self.digests[location] = hashlib.sha256(content).hexdigest()
        return self._contents[location]

    def _opened(self, location: str) -> bytes:
        parts = location.split("/")
        if any(part in {"", ".", ".."} or set(part) & {"\\", ":", "\0"} for part in parts):
            raise ValueError(f"{location[:200]!r} is not a path inside the model's folder")
        try:
            return self._walked(parts)
        except OSError as error:
            raise ValueError(
                f"{location[:200]!r} cannot be opened without following a link: {error.strerror}"
            ) from error

    def _walked(self, parts: list[str]) -> bytes:
        """Step by step below the folder, where no step may be a link."""
        if os.open not in os.supports_dir_fd:
            raise ValueError("this system cannot open a file without following links")
        *folders, name = parts
        place = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for folder in folders:
                inner = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=place)
                os.close(place)
                place = inner
            # a pipe would block, a terminal would be taken over
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
            return self._checked(os.open(name, flags, dir_fd=place))
        finally:
            os.close(place)

    def _checked(self, descriptor: int) -> bytes:
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise ValueError("it is not a regular file")
            if found.st_nlink != 1:
                raise ValueError("the file has a second name (hard link), perhaps elsewhere")
            if found.st_size > self._budget:
                raise ValueError(f"the files hold more than {MAX_FILE_BYTES} bytes in all")
            return file.read(found.st_size)
