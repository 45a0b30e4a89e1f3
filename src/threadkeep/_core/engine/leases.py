"""The rule that decides who may run a thread. See `model.LeaseThread`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from threadkeep._core.engine.heads import Head, Move
from threadkeep._core.engine.model import INPUTS_NS, LeaseThread
from threadkeep._core.engine.rule_reads import Planning, ReadNewer, ask
from threadkeep._core.engine.thread_entry import DUE, HELD_UNTIL, UNSAVED, ReadClock, worker_of
from threadkeep._core.engine.tips import after, names
from threadkeep.errors import HeldError, LeaseLostError, ThreadLockedError


class Holding(NamedTuple):
    """The last fields of a head."""

    holder: str | None
    until: int | None
    attempts: int

    @property
    def is_held(self) -> bool:
        return self.until == HELD_UNTIL and self.holder is None

    def has_ended(self, now: int) -> bool:
        return self.until is None or self.until <= now


def asked(head: Head) -> tuple[str | None, int | None, int]:
    """Return the lease of a head whose thread becomes due."""
    until = DUE if head.lease_until is None else head.lease_until
    return head.holder, until, head.attempts


def move_of(change: LeaseThread, head_of: Callable[[str], Head], tip: int) -> Planning[Move | None]:
    """Return the move of a change of a lease, or None if there is nothing to change."""
    head = head_of(change.thread)
    now = yield from ask(ReadClock(change.thread))
    old = Holding(head.holder, head.lease_until, head.attempts)
    if head.state in UNSAVED and old.holder is not None and old.has_ended(now):
        old = Holding(None, None, 0)  # (a death before anything was saved is no attempt)
    new = _RULES[change.does](change, old, now)
    if change.does in _LAST and new.until != HELD_UNTIL:
        is_back = change.link is not None and not names(head.tips, change.link.base)
        has_inputs = yield from ask(ReadNewer(head, INPUTS_NS, None, 1))
        if has_inputs or (is_back and head.status is not None):
            new = new._replace(until=new.until or DUE)
        elif head.status is None:  # (there is nothing to resume)
            new = Holding(None, None, 0)
    if new == old:
        return None
    is_last = bool(change.last) and head.tips[:1] == (change.last,)
    tips = after(head.tips[1:] if is_last else head.tips, tip)
    lease = {"holder": new.holder, "lease_until": new.until, "attempts": new.attempts}
    return Move(head, head._replace(tips=tips, **lease))  # type: ignore[arg-type] # by name


def _take(change: LeaseThread, old: Holding, now: int) -> Holding:
    """Refuse a live holder, and the thread's last attempt."""
    attempts = old.attempts
    if old.holder not in {None, change.holder}:
        if not old.has_ended(now):
            raise _locked(change.thread, old, now)
        attempts += 1  # (it died)
    if old.is_held or (attempts > old.attempts and attempts >= change.most):
        raise HeldError(
            hint="Look at its last error, then release it: saver.runs.release(thread_id).",
            thread=change.thread,
        )
    return Holding(change.holder, now + change.length, attempts)


def _locked(thread: str, old: Holding, now: int) -> ThreadLockedError:
    name, seconds = worker_of(str(old.holder)), ((old.until or now) - now) / 1e6
    return ThreadLockedError(
        f"{name} runs the thread, and may hold it for another {seconds:.0f} s.",
        hint="Try again later, or pass wait= to wait for the end of that run.",
        thread=thread,
    )


def _hold(change: LeaseThread, old: Holding, now: int) -> Holding:
    is_dead = old.holder is not None and old.has_ended(now)
    if is_dead and old.attempts + 1 >= change.most:
        return Holding(None, HELD_UNTIL, old.attempts + 1)
    return old


def _release(_: LeaseThread, old: Holding, __: int) -> Holding:
    return Holding(None, DUE, 0) if old.is_held else old


def _free(_: LeaseThread, old: Holding, __: int) -> Holding:
    return old if old.until is None else Holding(None, DUE, 0)


def _ask(_: LeaseThread, old: Holding, __: int) -> Holding:
    return old._replace(until=DUE) if old.until is None else old


def _own(change: LeaseThread, old: Holding) -> None:
    if old.holder != change.holder:
        raise LeaseLostError(thread=change.thread)


def _renew(change: LeaseThread, old: Holding, now: int) -> Holding:
    _own(change, old)
    if old.has_ended(now):
        raise LeaseLostError(thread=change.thread)
    return old._replace(until=now + change.length)


def _end(change: LeaseThread, old: Holding, _: int) -> Holding:
    _own(change, old)
    return Holding(None, None, 0)


def _yield(change: LeaseThread, old: Holding, _: int) -> Holding:
    _own(change, old)
    return Holding(None, DUE, old.attempts)


def _fail(change: LeaseThread, old: Holding, now: int) -> Holding:
    _own(change, old)
    attempts = old.attempts + 1
    later = now + change.length * attempts
    return Holding(None, HELD_UNTIL if attempts >= change.most else later, attempts)


_LAST = ("end", "yield", "fail")
_Rule: TypeAlias = Callable[[LeaseThread, Holding, int], Holding]
_RULES: Mapping[str, _Rule] = {
    "take": _take,
    "hold": _hold,
    "release": _release,
    "free": _free,
    "ask": _ask,
    "renew": _renew,
    "end": _end,
    "yield": _yield,
    "fail": _fail,
}
