"""Migrations: how a program reads values that an older release of it stored.

A *shape* is a whole number: 1 until a migration raises it. Each class has its own, and the channels
of the graphs have one together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias, TypeVar, overload

from threadkeep.errors import InvalidArgumentError, invalid

Function: TypeAlias = Callable[[Any], Any]
Class: TypeAlias = type | str
F = TypeVar("F", bound=Function)

_NAME_HINT = "Use the class, or its name as 'module.Name' or 'module:Qualified.Name'."


class ClassPlan(NamedTuple):
    """The shapes of a stored class.

    `target` is the class that its values become, or its name, or `dict`, or None if it was not
    moved. A step is the shape that its function leads to, or None in place of a lost function.
    """

    name: str
    shape: int = 1
    steps: tuple[tuple[int, Function | None], ...] = ()
    target: Class | None = None


class ChannelStep(NamedTuple):
    """A change of the channels: `old` became `new`, or its value is `function`'s result."""

    shape: int
    old: str
    new: str = ""
    function: Function | None = None
    is_node: bool = False


class Migrations:
    """Changes of an application's classes and channels since values were stored.

    Pass it to a saver or store as `migrations=`. Values are changed when they are read, and stored
    as they are now by the next save of them. `threadkeep upgrade` rewrites everything. Register
    all changes before a saver or store uses the object.

    Args:
        shape: the shape of the channels that older programs left, if you have removed the
            migrations that led there.

    Raises:
        InvalidArgumentError: `shape` is no whole number of 1 or more.
    """

    def __init__(self, *, shape: int = 1) -> None:
        self._shape = _checked_shape(shape, 1)
        self._is_used = False
        self._types: dict[str, dict[int, Function | None]] = {}
        self._moved: dict[str, Class] = {}
        self._channels: list[ChannelStep] = []

    def type(self, cls: Class, version: int) -> Callable[[F], F]:
        """Register a change of a class, as a decorator of a function.

        The function gets a dict with the fields of a value in the shape before, and returns those
        of shape `version`. Fields hold values as they are loaded. A value of an enum or of a
        subclass of a built-in type has one field, "value".

        Args:
            cls: the class, or its name as "module.Name" or "module:Qualified.Name".
            version: the new shape: 2 or more, and more than all before. If you no longer need the
                function, call `type` without decorating one. Older values then raise
                `StateMigrationError`.

        Raises:
            InvalidArgumentError: the name or version is invalid, or registered already.
        """
        name, shape = _class_name(cls), _checked_shape(version, 2)
        self._check_unused()
        steps = self._types.setdefault(name, {})
        if shape in steps:
            raise _twice(name, shape)
        steps[shape] = None

        def decorated(function: F) -> F:
            if not callable(function):
                raise invalid("migration", function, "Decorate a function of one argument.")
            steps[shape] = function
            return function

        return decorated

    def moved(self, old: str, new: Class) -> None:
        """Register another name or module of a class.

        Args:
            old: its name in stored data, as "module.Name" or "module:Qualified.Name".
            new: the class, or its name, or `dict` to load the fields of a class that is gone.

        Raises:
            InvalidArgumentError: a name is invalid, or `old` was registered already.
        """
        name = _class_name(old)
        target = new if isinstance(new, type) else _class_name(new)
        self._check_unused()
        if name in self._moved:
            raise InvalidArgumentError(f"{name} was registered as moved already.")
        self._moved[name] = target

    @overload
    def channel(self, name: str, new: str, *, version: int) -> None: ...
    @overload
    def channel(self, name: str, *, version: int) -> Callable[[F], F]: ...

    def channel(
        self, name: str, new: str | None = None, *, version: int
    ) -> Callable[[F], F] | None:
        """Register another name of a channel, or as a decorator a function of its values.

        The function gets a value in the shape before and returns the value in shape `version`, also
        of each pending write to the channel.

        Args:
            name: the channel's name in the shape before.
            new: its name from then on, or None to decorate a function.
            version: the new shape of all channels: 2 or more. Several changes may share it.

        Raises:
            InvalidArgumentError: a name or the version is invalid.
        """
        shape = _checked_shape(version, 2)
        if new is not None:
            self._step(ChannelStep(shape, _channel_name(name), _channel_name(new)))
            return None
        _channel_name(name)
        self._check_unused()

        def decorated(function: F) -> F:
            if not callable(function):
                raise invalid("migration", function, "Decorate a function of one argument.")
            self._step(ChannelStep(shape, name, function=function))
            return function

        return decorated

    def node(self, name: str, new: str, *, version: int) -> None:
        """Register another name of a node, for the channels that start it and for sent tasks.

        Args:
            name: the node's name in the shape before.
            new: its name from then on.
            version: the new shape of all channels, as in `channel`.

        Raises:
            InvalidArgumentError: a name or the version is invalid.
        """
        shape = _checked_shape(version, 2)
        self._step(ChannelStep(shape, _channel_name(name), _channel_name(new), is_node=True))

    def _step(self, step: ChannelStep) -> None:
        self._check_unused()
        if step.shape <= self._shape:
            raise invalid("version", step.shape, f"Use more than Migrations(shape={self._shape}).")
        self._channels.append(step)

    def _channel_plan(self) -> tuple[int, tuple[ChannelStep, ...], int]:
        """Return the shape of the channels, the steps to it, and their start.

        Ends the registration.
        """
        self._is_used = True
        steps = sorted(self._channels, key=lambda step: step.shape)
        return max([self._shape, *[step.shape for step in steps]]), tuple(steps), self._shape

    def _check_unused(self) -> None:
        if self._is_used:
            raise InvalidArgumentError(
                "A saver or store uses these migrations already.",
                hint="Register all of them before you open it.",
            )

    def _plans(self) -> Mapping[str, ClassPlan]:
        """Return the plan of each class, by its names in data. Ends the registration."""
        self._is_used = True
        homes = {name: self._home(name) for name in {*self._types, *self._moved}}
        steps: dict[str, dict[int, Function | None]] = {home: {} for home, _ in homes.values()}
        for name, own in self._types.items():
            home = homes[name][0]
            if twice := steps[home].keys() & own.keys():
                raise _twice(home, min(twice))
            steps[home] |= own
        known = {home: (home, None) for home in steps} | homes
        return {
            name: ClassPlan(home, max(steps[home], default=1), _sorted(steps[home]), target)
            for name, (home, target) in known.items()
        }

    def _home(self, name: str) -> tuple[str, Class | None]:
        """Follow the moves of a class, and return its last name and its target."""
        target: Class | None = None
        met = {name}
        while (new := self._moved.get(name)) is not None:
            target = new
            if new is dict:
                break
            name = _class_name(new)
            if name in met:
                raise InvalidArgumentError(f"The class {name} was moved in a circle.")
            met.add(name)
        return name, target


def _sorted(steps: Mapping[int, Function | None]) -> tuple[tuple[int, Function | None], ...]:
    return tuple([(shape, steps[shape]) for shape in sorted(steps)])


def _twice(name: str, shape: int) -> InvalidArgumentError:
    return InvalidArgumentError(f"{name} has two migrations to version {shape}.")


def _class_name(cls: object) -> str:
    """Return "module:Qualified.Name" of a class or of its name."""
    if isinstance(cls, type):
        return f"{cls.__module__}:{cls.__qualname__}"
    if isinstance(cls, str) and "@" not in cls:
        module, separator, name = cls.partition(":")
        if not separator:
            module, _, name = cls.rpartition(".")
        if module and name:
            return f"{module}:{name}"
    raise invalid("class", cls, _NAME_HINT)


def _channel_name(name: object) -> str:
    if isinstance(name, str) and name:
        return name
    raise invalid("name", name, "Use the name of a channel or node.")


def _checked_shape(version: object, least: int) -> int:
    if type(version) is not int or not least <= version < 1 << 31:
        raise invalid("version", version, f"Use a whole number of {least} or more.")
    return version
