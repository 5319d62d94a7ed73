"""Registries: members of the core's modules by name, each loaded when it is first requested.

So a check depends only on the modules that its certificate and its model need.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any


def member(package: str, place: str) -> Any:
    """Return the member at "module.name" in a package of the core."""
    module, _, name = place.partition(".")
    return getattr(import_module(f"lipcert.core.{package}.{module}"), name)


def spelt(kind: str) -> str:
    """Return the name of an ONNX operator as the name of its function: "gather_nd" for GatherND."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kind).lower()


class Registry(Mapping[str, Any]):
    """Members of the modules of one package, by the names that files and settings use for them.

    rows: names, separated by blanks, by their place: "module.member", or "module" if `spelt` turns
    the name into the member. places: the place of each name.
    """

    def __init__(
        self, package: str, rows: Mapping[str, str], spelt: Callable[[str], str] = str
    ) -> None:
        self.package = package
        self.places = {
            name: place if "." in place else f"{place}.{spelt(name)}"
            for place, names in rows.items()
            for name in names.split()
        }

    def __getitem__(self, name: str) -> Any:
        return member(self.package, self.places[name])

    def name_of(self, kind: type) -> str:
        """Return the name under which a class is listed."""
        place = f"{kind.__module__.rpartition('.')[2]}.{kind.__name__}"
        return next(name for name, listed in self.places.items() if listed == place)

    def __contains__(self, name: object) -> bool:
        return name in self.places

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)
