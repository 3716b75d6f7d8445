"""Kernels, priors and likelihoods by name, so that files and the command line find them and users can add their own.

A file holds a name and, for what comes from outside this library, the module that registered it. That module is a hint
for people: it is printed and never imported.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

from integrand.errors import InputError, UnregisteredError

T = TypeVar("T")


class Registry(dict[str, T]):
    """Entries by the names they have in files; `named` also takes aliases, in any case of letters.

    `kind` is what the entries are, such as "kernel". An entry is recognised by its definition, which is the class or
    the function that stands below the decorator `register_<kind>`.
    """

    def __init__(self, kind: str):
        super().__init__()
        self.kind = kind
        self._sources: dict[str, tuple[str, str]] = {}  # module and name of the definition
        self._names: dict[str, str] = {}  # from names and aliases in lower case

    def register(self, definition: Any, entry: T, name: str, alias: Sequence[str] = ()) -> None:
        """Add an entry. A name may be taken once, or again by the same definition (a notebook cell that is rerun)."""
        for word in (name, *alias):
            taken = self._names.get(word.lower())
            if taken is not None and self._sources[taken] != _source(definition):
                module = self._sources[taken][0]
                raise InputError(f"a {self.kind} called {word!r} is registered already ({module}): choose another name")
        self[name], self._sources[name] = entry, _source(definition)
        self._names |= {word.lower(): name for word in (name, *alias)}

    def named(self, name: Any) -> T:
        """The entry with this name or alias; an InputError that lists the names if there is none."""
        if isinstance(name, str) and name.lower() in self._names:
            return self[self._names[name.lower()]]
        known = ", ".join(self._names)
        raise InputError(f"there is no {self.kind} {name!r}: choose from {known}, or register your own")

    def name_of(self, definition: Any) -> str:
        """The name that files have for a definition; an UnregisteredError if it has none."""
        for name, source in self._sources.items():
            if source == _source(definition):
                return name
        raise UnregisteredError(
            f"the {self.kind} {definition.__name__} is not registered, so a file with it could not be loaded again: "
            f"write @integrand.register_{self.kind} above its definition"
        )

    def hint(self, name: str) -> dict[str, str]:
        """The module of an entry from outside this library, for files."""
        module = self._sources[name][0]
        return {} if module.split(".")[0] == __name__.split(".")[0] else {"module": module}

    def restored(self, name: Any, module: Any = None) -> T:
        """The entry that a file names; an UnregisteredError that says what to import if it is not here."""
        if isinstance(name, str) and name in self:
            return self[name]
        if not isinstance(module, str) or not all(part.isidentifier() for part in module.split(".")):
            raise UnregisteredError(
                f"this version knows no {self.kind} {name!r}: upgrade integrand, or import the module that registers it"
            )
        if module == "__main__":
            advice = "it was defined in a script or notebook, so define and register it first"
        else:
            advice = f"import {module} first (on the command line: --import {module})"
        raise UnregisteredError(f"this file uses the {self.kind} {name!r}, which is not part of integrand: {advice}")


def _source(definition: Any) -> tuple[str, str]:
    return definition.__module__, definition.__qualname__
