"""Find estimators, meters and runtimes that other distributions add through entry points.

    [project.entry-points."joulecast.estimators"]
    forest = "forest_energy.estimator:ForestEstimator"

A plug-in is imported when its name is first used, so an installed plug-in that is broken or slow to
import does not affect anything else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from joulecast.system.errors import MissingError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ESTIMATOR_GROUP = "joulecast.estimators"
METER_GROUP = "joulecast.meters"
RUNTIME_GROUP = "joulecast.runtimes"


class Plugins(Mapping[str, Any]):
    """The plug-ins of one entry-point group, by name; each is imported on first access."""

    def __init__(self, group: str, entry_points: Mapping[str, tuple[EntryPoint, ...]]) -> None:
        self.group = group
        self._entry_points = entry_points
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        """Import a plug-in and return the object that its entry point names.

        Raises:
            KeyError: No distribution offers the name.
            MissingError: The plug-in cannot be imported, or several distributions offer the name.
        """
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entry_points)

    def __len__(self) -> int:
        return len(self._entry_points)

    def _load(self, name: str) -> Any:
        found = self._entry_points[name]
        if len(found) > 1:
            owners = ", ".join(map(_name_distribution, found))
            raise MissingError(
                f"{len(found)} plug-ins in the group {self.group} are called {name!r} "
                f"({owners}): uninstall all but one"
            )
        try:
            return found[0].load()
        except Exception as error:
            owner = _name_distribution(found[0])
            raise MissingError(
                f"the plug-in {name!r} of {owner} cannot be loaded "
                f"({type(error).__name__}: {error}): repair or uninstall {owner}"
            ) from error


@cache
def load_plugins(group: str, built_in: Collection[str] = frozenset()) -> Plugins:
    """Return the plug-ins that installed distributions register in an entry-point group.

    Args:
        group: Name of the entry-point group, such as ``joulecast.estimators``.
        built_in: Names that Joulecast itself uses (a frozenset or tuple); plug-ins with one of
            these names are left out.
    """
    from importlib.metadata import entry_points

    found: dict[str, tuple[EntryPoint, ...]] = {}
    for point in sorted(entry_points(group=group), key=lambda point: (point.name, point.value)):
        # A distribution may be visible twice: installed, and as a source tree on the path.
        others = found.get(point.name, ())
        if point.name not in built_in and point.value not in {other.value for other in others}:
            found[point.name] = (*others, point)
    return Plugins(group, found)


def _name_distribution(point: EntryPoint) -> str:
    distribution = point.dist
    return f"{distribution.name} {distribution.version}" if distribution else point.value
