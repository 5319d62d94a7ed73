"""Exports of torch modules, kept beside this file: torch takes seconds for each of them.

A module is known by its code, whatever docstrings and comments say, its parts and what they hold,
the inputs and the options. A file gets the numbers of the parameters that the module has. A module
that is not known is exported.
`pytest --record-exports` exports everything anew and keeps it here.
"""

import ast
import hashlib
import inspect
import json
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from functools import cache, wraps
from pathlib import Path
from types import CodeType, FunctionType

import onnx
import torch
from onnx import numpy_helper
from torch import Tensor, nn

from lipcert.training import exporting

FOLDER = Path(__file__).parent
MANIFEST = FOLDER / "manifest.json"
_OURS = ("tests", "lipcert", "models", "__main__")
"""packages whose code is a part of what a module is"""


class UnreadableError(Exception):
    """A module whose code cannot be read."""


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def key_of(module: nn.Module, inputs: object, options: object) -> str:
    """Digest of all that decides what is exported, but for the numbers of the parameters."""
    seen: set[object] = set()
    lines = [torch.__version__.partition("+")[0], *_told(inputs, seen), *_told(options, seen)]
    for name, part in module.named_modules():
        lines += [name, type(part).__qualname__, part.extra_repr(), str(part.training)]
        lines += _code(type(part), seen)
        held = {k: v for k, v in vars(part).items() if not k.startswith("_") and k != "training"}
        lines += _told(held, seen)
        lines += _told(dict(part.named_buffers(recurse=False)), seen)
    for name, own in module.named_parameters(remove_duplicate=False):
        lines.append(f"{name} {list(own.shape)} {own.dtype} {own.requires_grad}")
    return digest("\n".join(lines).encode())


def _told(item: object, seen: set[object]) -> Iterator[str]:
    """What an object is, in words that are the same in every process."""
    match item:
        case Tensor():
            yield f"{list(item.shape)} {item.dtype} {item.detach().flatten().tolist()}"
        case Mapping():
            for name, each in item.items():
                yield str(name)
                yield from _told(each, seen)
        case list() | tuple():
            yield f"{type(item).__name__} {len(item)}"
            for each in item:
                yield from _told(each, seen)
        case FunctionType() | type():
            yield item.__qualname__
            yield from _code(item, seen)
        case _:
            text, addresses = re.subn(r" at 0x[0-9a-f]+", "", repr(item))
            yield text
            if addresses and id(item) not in seen:
                seen.add(id(item))
                yield from _told(getattr(item, "__dict__", {}), seen)


def _code(item, seen: set[object]) -> Iterator[str]:
    """Sources of a class or a function, and of what it names, where they are ours."""
    package = (getattr(item, "__module__", None) or "").partition(".")[0]
    if item in seen or package not in _OURS:
        return
    seen.add(item)
    try:
        yield _source(item)
    except (OSError, TypeError) as error:
        if isinstance(item, FunctionType) and item.__code__.co_filename == "<string>":
            return  # written by a data class, whose own source tells it
        raise UnreadableError from error
    for base in item.__mro__[1:] if isinstance(item, type) else ():
        yield from _code(base, seen)
    members = vars(item).values() if isinstance(item, type) else (item,)
    for function in members:
        plain = getattr(function, "__func__", function)
        if isinstance(plain, FunctionType):
            if plain.__name__ == "<lambda>":  # whose source is its line
                yield f"{plain.__code__.co_names} {plain.__code__.co_varnames}"
            yield from _told([cell.cell_contents for cell in plain.__closure__ or ()], seen)
            for name in _names(plain.__code__):
                yield from _named(plain.__globals__.get(name), seen)


@cache
def _source(item) -> str:
    """What a class or a function does, without its comments, its layout and what it says."""
    source = inspect.getsource(item)
    try:
        tree = ast.parse(textwrap.dedent(source))
    except SyntaxError:  # the line of a lambda
        return source
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
            node.body[0] = ast.Pass()
    return ast.unparse(tree)


def _named(item: object, seen: set[object]) -> Iterator[str]:
    if isinstance(item, FunctionType | type):
        yield from _code(item, seen)
    elif isinstance(item, int | float | str | tuple | Tensor):
        yield from _told(item, seen)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for item in code.co_consts:
        if isinstance(item, CodeType):
            yield from _names(item)


class Store:
    """The files; `anew`: not read, but written. seen: what this process has read or exported."""

    def __init__(self, *, anew: bool) -> None:
        self.anew = anew
        known = json.loads(MANIFEST.read_text("utf-8")) if MANIFEST.exists() else {}
        self.known: dict[str, str] = known
        self.made: dict[str, str] = {}
        self.seen: dict[str, bytes] = {}

    def write(
        self, key: str, export: Callable[[], object], module: nn.Module, target: Path
    ) -> None:
        """The file of a module: that which is kept, with the numbers of the parameters."""
        kept = FOLDER / f"{key[:16]}.onnx"
        if key not in self.seen and not self.anew and key in self.known:
            self.seen[key] = kept.read_bytes()
        known = self.seen.get(key)
        if known is not None and (data := _with_numbers(known, module)) is not None:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            return
        export()
        if known is None and not list(target.parent.glob(f"{target.name}?*")):
            self.seen[key] = without_traces(target.read_bytes())
            if self.anew:
                kept.write_bytes(self.seen[key])
                self.made[key] = f"{type(module).__qualname__} {digest(self.seen[key])}"

    def close(self) -> None:
        if self.anew:
            listed = json.dumps(self.known | self.made, indent=1, sort_keys=True)
            MANIFEST.write_text(f"{listed}\n", "utf-8")


def without_traces(data: bytes) -> bytes:
    """A file that does not say from which lines, in which folders, its nodes come."""
    proto = onnx.load_from_string(data)
    parts = [proto.graph, *proto.functions]
    while parts:
        for node in parts.pop().node:
            parts += [item.g for item in node.attribute if item.HasField("g")]
            kept = [item for item in node.metadata_props if not item.key.endswith("stack_trace")]
            del node.metadata_props[:]
            node.metadata_props.extend(kept)
    return proto.SerializeToString()


def _with_numbers(data: bytes, module: nn.Module) -> bytes | None:
    """A file with the parameters of a module; nothing where they are no tensors of the file."""
    proto = onnx.load_from_string(data)
    own = dict(module.named_parameters(remove_duplicate=False))
    changed = False
    for item in proto.graph.initializer:
        if item.name in own:
            array, held = own[item.name].detach().cpu().numpy(), numpy_helper.to_array(item)
            if (array.shape, array.dtype) != (held.shape, held.dtype):
                return None
            if array.tobytes() != held.tobytes():
                item.CopyFrom(numpy_helper.from_array(array.copy(), item.name))
                changed = True
    return proto.SerializeToString() if changed else data


def install(store: Store) -> None:
    """Take what is kept wherever something is exported."""
    export, by_torch = exporting._exported, torch.onnx.export

    @wraps(export)
    def exported(module: nn.Module, inputs: tuple[Tensor, ...], target: Path) -> Path:
        try:
            key = key_of(exporting.unwrapped(module), inputs, "lipcert")
        except UnreadableError:
            return export(module, inputs, target)
        store.write(key, lambda: export(module, inputs, target), module, target)
        return target

    @wraps(by_torch)
    def onnx_export(module, args=(), f=None, **options) -> object:
        if f is None or not isinstance(module, nn.Module):
            return by_torch(module, args, f, **options)
        try:
            key = key_of(module, args, [options, dict(module.named_parameters())])
        except UnreadableError:
            return by_torch(module, args, f, **options)
        store.write(key, lambda: by_torch(module, args, f, **options), module, Path(f))
        return None

    exporting._exported = exported
    torch.onnx.export = onnx_export
