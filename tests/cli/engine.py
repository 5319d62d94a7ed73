"""A stand-in for importer and engine, so that the command line is tested on its own."""

import sys
from types import ModuleType

from lipcert.cli import paths
from lipcert.settings.gates import NO_GATES, Gates
from lipcert.settings.settings import Settings
from tests.report.samples import sample


class Engine:
    """Records the settings it was called with; `failure` is raised instead of a result."""

    def __init__(self) -> None:
        self.settings = Settings()
        self.paths: list[str] = []
        self.loaded_under = Settings()
        self.model = object()
        self.result = sample()
        self.failure: BaseException | None = None

    def load_under(self, path, settings: Settings) -> object:
        self.paths.append(str(path))
        self.loaded_under = settings
        if self.failure is not None:
            raise self.failure
        return self.model

    def load_model(self, path, **options: object) -> object:
        """As `inspect` calls it, which knows no run."""
        return self.load_under(path, Settings())

    def analyze(
        self,
        model: object,
        settings: Settings,
        observe,
        *,
        examples: object = None,
        gates: Gates = NO_GATES,
    ):
        assert model is self.model
        self.settings = settings
        observe("conv1", 1, 2)
        return self.result


def install(monkeypatch) -> Engine:
    engine = Engine()
    for name, attributes in (
        ("lipcert.importer.load", ("load_model", "load_under")),
        ("lipcert.analysis.pipeline", ("analyze",)),
    ):
        module = ModuleType(name)
        for attribute in attributes:
            setattr(module, attribute, getattr(engine, attribute))
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(paths, "require_model", lambda path: None)  # no file is read
    return engine
