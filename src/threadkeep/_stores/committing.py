"""Changes as moves of a database: planned together, made, and planned again if heads have moved.

`committing` is a generator for blocking and awaiting databases. It yields `Ask` and `MakeMoves`,
and is sent their replies. A head in memory is a hint: each move proves the heads that it builds on,
and a change is refused only on heads that were read, or made, in the same call.

No request needs the transaction of another one (PostgreSQL lets commits take turns in one, see
`postgres.backend`). Each move of a thread in a call has a tip of its own, by which it is found if
its answer is lost.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

from threadkeep._core.engine import model
from threadkeep._core.engine.heads import Head, Move
from threadkeep._core.engine.positions import placed_in
from threadkeep._core.engine.rule_reads import Planning, ReadHead
from threadkeep._core.engine.rules import (
    addition,
    check_state,
    holds_surely,
    is_made,
    is_stored,
    mends,
    move_of,
    only_adds,
)
from threadkeep._stores.records import new_tip, tip_of
from threadkeep._stores.sync_bridge import finish
from threadkeep.errors import (
    ClosedError,
    LockedError,
    StaleThreadError,
    StatementTimeoutError,
    ThreadkeepError,
    UnreachableError,
)

# If attempts do not take turns, as on Redis, one of five wins if eight clients commit to one
# thread without a pause: so many are lost in turn once in 10^9 commits.
_ATTEMPTS = 96
_MOST_HEADS = 1024
_OF_THE_STORE = (UnreachableError, ClosedError)
_AFTER_A_WAIT = (StatementTimeoutError, LockedError)


T = TypeVar("T")


class Ask(NamedTuple):
    """Answer these reads from one state. Reply: a list, in order."""

    reads: Sequence[Any]


class MakeMoves(NamedTuple):
    """Make these moves of different threads, each alone. Reply: the new heads. None if refused."""

    moves: Sequence[Move]


Results: TypeAlias = "list[ThreadkeepError | None]"
Asking: TypeAlias = Generator[Ask | MakeMoves, Any, T]


class Heads:
    """The heads of threads that this process has read or committed to, as hints. Bounded.

    No lock is needed: each step is atomic in CPython.
    """

    def __init__(self) -> None:
        self._heads: dict[str, Head] = {}

    def get(self, thread: str) -> Head | None:
        return self._heads.get(thread)

    def found(self, head: Head) -> None:
        """Remember a head that was read, unless it is known already, with the gaps of its logs."""
        known = self._heads.get(head.thread)
        if known is None or known.tips[:1] != head.tips[:1]:
            self.keep((head,))

    def keep(self, heads: Iterable[Head]) -> None:
        """Remember heads that were read, or of committed moves."""
        known = self._heads
        for head in heads:
            known.pop(head.thread, None)  # (to the end: the first ones are forgotten first)
            known[head.thread] = head
        if len(known) > _MOST_HEADS:
            for name in [*known][: _MOST_HEADS // 8]:
                known.pop(name, None)

    def forget(self, thread: str) -> None:
        self._heads.pop(thread, None)

    def clear(self) -> None:
        self._heads.clear()


def plain_move(head: Head, change: model.Change, tip: int) -> Move | None:
    """Return the move of a change that only adds rows, as most do. None if it takes a closer look.

    So a change is never refused here: the head may be an old one.
    """
    if type(change) is not model.Batch or not only_adds(change):
        return None
    for fence in change.fences:
        if not holds_surely(fence, head):
            return None
    try:
        check_state(change, head)
    except ThreadkeepError:
        return None
    link = change.link
    if link is not None and link.stored:
        kept = [one for one in change.segments if one[:3] not in link.stored]
        change = change._replace(segments=tuple(kept))
    placed = placed_in(head, change)
    return None if placed is None else addition(head, head, change, placed, tip)


def plain_moves(known: Heads, changes: Sequence[model.Change]) -> list[Move]:
    """Return the moves of the most common commits: rows added to threads with known heads.

    One for each thread, or none at all if a change takes a closer look.
    """
    moves: dict[str, Move] = {}
    for change in changes:
        name, tip = change.thread, tip_of(change)
        before = moves.get(name)
        if before is not None:
            move = _move_after(before, change, tip)
        else:
            head = known.get(name)
            if head is None or is_made(tip, head):
                return []
            move = plain_move(head, change, tip)
        if move is None:
            return []
        moves[name] = move
    return [*moves.values()]


def committing(
    known: Heads,
    changes: Sequence[model.Change],
    tried: Sequence[tuple[Move, Head | None]] = (),
    *,
    shares_heaps: bool = True,
    has_lost: Callable[[], bool] = bool,
) -> Asking[tuple[Results, Iterable[Head]]]:
    """Make changes, in order, and return the refusal of each, and the heads to remember.

    `tried` are the `plain_moves` of the same changes and their new heads, None of a refused one.
    Without `shares_heaps`, a fork copies segments. `has_lost` returns True if an answer may have
    been lost since the first move.
    """
    group = _Group(known, len(changes), shares_heaps=shares_heaps, has_lost=has_lost)
    group.note(changes, tried)
    if not tried:
        yield from group.read(_threads(changes))
    try:
        if not tried:
            yield from group.plan(changes, range(len(changes)))
        if group.stale:
            yield from group.plan(changes, (yield from group.unmade(changes)))
        for number in (yield from group.unmade(changes)):
            yield from group.alone(number, changes[number])
    except _OF_THE_STORE as error:
        if not group.done:
            raise
        for number in set(range(len(changes))) - group.done:
            group.results[number] = error.fresh()
    return group.results, group.heads.values()


def _threads(changes: Iterable[model.Change]) -> dict[str, None]:
    names: dict[str, None] = {}
    for change in changes:
        names[change.thread] = None
        if isinstance(change, model.CopyThread | model.ForkThread):
            names[change.source] = None
    return names


class _Group:
    """Changes of one call: their heads as planned, and the moves that are not made yet."""

    def __init__(
        self, known: Heads, count: int, *, shares_heaps: bool, has_lost: Callable[[], bool]
    ) -> None:
        self.results: Results = [None] * count
        self.heads: dict[str, Head] = {}
        self.stale: list[int] = []
        self.done: set[int] = set()  # changes that were made or refused
        self._known = known
        self._shares_heaps = shares_heaps
        self._has_lost = has_lost
        self._sure: set[str] = set()  # threads whose heads were read or made in this call
        self._sent: set[str] = set()  # threads of sent moves, whatever the answer
        self._refused: set[int] = set()  # changes whose last move was refused
        self._late: set[str] = set()  # those whose heads had moved
        self._damaged: dict[str, ThreadkeepError] = {}
        self._moves: dict[str, Move] = {}
        self._owners: dict[str, list[int]] = {}  # the changes of each move

    def note(
        self, changes: Sequence[model.Change], tried: Iterable[tuple[Move, Head | None]]
    ) -> None:
        """Note the moves of all changes, and their new heads."""
        owners: dict[str, list[int]] = {}
        for number, change in enumerate(changes):
            owners.setdefault(change.thread, []).append(number)
        for move, head in tried:
            self._reply(move, head, owners[move.new.thread])

    def read(self, names: Iterable[str], *, again: bool = False) -> Asking[None]:
        """Look up heads. Read the unknown ones, or all."""
        unknown = []
        for name in names:
            head = None if again else self._known.get(name)
            if head is None:
                unknown.append(name)
            else:
                self.heads[name] = head
        if not unknown:
            return
        try:
            found = yield Ask([ReadHead(name) for name in unknown])
        except ThreadkeepError as error:
            if self._ends(error) and isinstance(error, (*_OF_THE_STORE, *_AFTER_A_WAIT)):
                raise  # (each head would be waited for as long)
            found = yield from self._read_each(unknown)  # (one is damaged)
        for head in found:
            self.heads[head.thread] = head
            self._sure.add(head.thread)

    def _read_each(self, names: Iterable[str]) -> Asking[list[Head]]:
        """Look up heads one by one. A damaged one is an error only for its own changes."""
        found: list[Head] = []
        for name in names:
            try:
                found += yield Ask([ReadHead(name)])
            except _OF_THE_STORE:
                raise
            except ThreadkeepError as error:
                self._damaged[name] = error
        return found

    def unmade(self, changes: Sequence[model.Change]) -> Asking[list[int]]:
        """Read the heads of stale changes. Return the changes that are not made.

        The answer to a move may have been lost. The repeated move is refused.
        """
        stale = {number: changes[number] for number in self.stale}
        self._late.clear()
        names = [name for name in _threads(stale.values()) if name not in self._sure]
        yield from self.read(names, again=True)
        self._sent.update([change.thread for change in stale.values()])
        return [number for number, change in stale.items() if not self._has_made(number, change)]

    def _has_made(self, number: int, change: model.Change) -> bool:
        name = change.thread
        if number not in self._refused or name in self._damaged:
            return False
        self._refused.remove(number)
        if not is_made(tip_of(change), self.heads[name]):
            return False
        self.done.add(number)
        return True

    def plan(self, changes: Sequence[model.Change], numbers: Iterable[int]) -> Asking[None]:
        """Make changes. Changes whose heads have moved are `stale` afterwards."""
        self.stale = []
        for number in numbers:
            yield from self._take(number, changes[number])
        yield from self.flush()
        self.stale.sort()

    def _take(self, number: int, change: model.Change) -> Asking[None]:
        """Plan a change that only adds rows. Make any other one at once."""
        name, names = change.thread, _threads([change])
        is_late = not self._late.isdisjoint(names)
        move = None if is_late or name in self._damaged else self._plain(change)
        if move is None:
            yield from self.flush()
            if self._late.isdisjoint(names):
                yield from self.alone(number, change)
            else:  # (after the changes before it, and before others of its threads)
                self.stale.append(number)
                self._late.update(names)
            return
        self._moves[name] = move
        self._owners.setdefault(name, []).append(number)
        self.heads[name] = move.new

    def _plain(self, change: model.Change) -> Move | None:
        """Return the move of a change that only adds rows, with its thread's moves before it."""
        name = change.thread
        pending = self._moves.get(name)
        if name in self._sent:
            _tie(change, new_tip() if pending is None else pending.new.tips[0])
        tip = tip_of(change)
        if pending is None:
            head = self.heads[name]
            return None if is_made(tip, head) else plain_move(head, change, tip)
        return _move_after(pending, change, tip)

    def flush(self) -> Asking[None]:
        """Make the moves that were planned."""
        moves, owners = self._moves, self._owners
        if not moves:
            return
        self._moves, self._owners = {}, {}
        self._sent.update(moves)
        made: list[Head | None] = [None] * len(moves)
        try:
            made = yield MakeMoves([*moves.values()])
        except ThreadkeepError as error:
            if self._ends(error):
                raise  # (otherwise the failure may be one change's)
        for (name, move), head in zip(moves.items(), made, strict=True):
            self._reply(move, head, owners[name])

    def _reply(self, move: Move, head: Head | None, owners: Iterable[int]) -> None:
        """Note the new head of a move, None if it was refused, and the changes that it made."""
        if head is not None:
            self.done.update(owners)
            self._note(move, head)
            return
        name = move.new.thread
        self.stale += owners
        self._refused.update(owners)
        self._late.add(name)
        self._sure.discard(name)
        self._known.forget(name)

    def _ends(self, error: ThreadkeepError) -> bool:
        """Return True if a failure ends the call: callers repeat all changes of a failed call."""
        return not self.done or isinstance(error, _OF_THE_STORE)

    def _note(self, move: Move, head: Head) -> None:
        for one in (head, *[other for _, other in move.beside]):
            self.heads[one.thread] = one
            self._sure.add(one.thread)
            self._damaged.pop(one.thread, None)

    def alone(self, number: int, change: model.Change) -> Asking[None]:
        """Make a change on heads that were read, and the rows that it names."""
        self.results[number] = yield from self._alone(change)
        self.done.add(number)

    def _alone(self, change: model.Change) -> Asking[ThreadkeepError | None]:
        names = _threads([change])
        if len(self.results) > 1:
            _tie(change, new_tip())
        tip = tip_of(change)
        for _ in range(_ATTEMPTS):
            yield from self.read([name for name in names if name not in self._sure], again=True)
            damage = [self._damaged[name] for name in names if name in self._damaged]
            if damage and not mends(change):
                return damage[0].fresh()
            try:
                if not damage and (yield from self._finds_made(change, tip)):
                    return None
                shares, head_of = self._shares_heaps, self.heads.__getitem__
                rule = move_of(change, head_of, tip, careful=True, shares_heaps=shares)
                move = yield from _looked(rule)
            except ThreadkeepError as refusal:
                return refusal
            if move is None:
                return None
            try:
                (head,) = yield MakeMoves([move])
            except ThreadkeepError as error:
                if self._ends(error):
                    raise
                return error
            if head is not None:
                self._note(move, head)
                return None
            self._sure.difference_update(names)
        return StaleThreadError(thread=change.thread)

    def _finds_made(self, change: model.Change, tip: int) -> Asking[bool]:
        head = self.heads[change.thread]
        if is_made(tip, head):
            return True
        return self._has_lost() and (yield from _looked(is_stored(change, head)))


def _looked(rule: Planning[T]) -> Asking[T]:
    """Run a rule, reading what it asks for."""
    replies: Any = None
    try:
        while True:
            replies = yield Ask(rule.send(replies))
    except StopIteration as done:
        found: T = done.value
        return found


def carried_out(asking: Asking[T], answer: Callable[[Ask | MakeMoves], list[Any]]) -> T:
    """Run the steps of a commit on a blocking database, and return their result."""

    async def answered(request: Ask | MakeMoves) -> list[Any]:
        return answer(request)

    return finish(awaited(asking, answered))


async def awaited(
    asking: Asking[T], answer: Callable[[Ask | MakeMoves], Awaitable[list[Any]]]
) -> T:
    """Run the steps of a commit on a database whose calls are awaited, and return their result."""
    try:
        request = next(asking)
        while True:
            try:
                reply = await answer(request)
            except ThreadkeepError as error:
                request = asking.throw(error)
            else:
                request = asking.send(reply)
    except StopIteration as done:
        result: T = done.value
        return result


def _tie(change: model.Change, tip: int) -> None:
    """Give a change another tip. It still builds on what it was built on, whatever comes later."""
    link = getattr(change, "link", None)
    if link is not None:
        link.tip = tip


_PLAIN = Move(Head(""), Head(""))[7:]  # all after `drop_segments`


def _move_after(first: Move, change: model.Change, tip: int) -> Move | None:
    """Return the move of a change together with one before it. None if it takes a closer look."""
    if type(change) is model.Batch and change.segments:
        # (a `put` carries the segments of its writes if it was built before their commit)
        new = [one for one in change.segments if one not in first.segments]
        if len(new) < len(change.segments):
            change = change._replace(segments=tuple(new))
    move = plain_move(first.new, change, tip)
    return None if move is None else _joined(first, move)


def _joined(first: Move, then: Move) -> Move | None:
    """Return two moves of a thread that only add rows as one, or None if they do more."""
    if first[7:] != _PLAIN or then[7:] != _PLAIN:
        return None
    segments, drops = first.segments, then.drop_segments
    if drops:
        if not set(drops).isdisjoint(first.drop_segments):
            return None
        own = {one[:3] for one in segments}
        segments = tuple([one for one in segments if one[:3] not in drops])
        drops = tuple([place for place in drops if place not in own])
    return Move(
        first.old,
        then.new,
        (*segments, *then.segments),
        (*first.checkpoints, *then.checkpoints),
        (*first.writes, *then.writes),
        (*first.labels, *then.labels),
        (*first.drop_segments, *drops),
    )
