"""How the instances of each class are written: the built-in rules, and those of data classes.

Only the choice of a rule lives here. Invariant: a rule depends on the class alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from threadkeep.codec import exceptions, known, models, records, subclasses, values
from threadkeep.codec.format import Packer, Rule, Tag


def data_rule(cls: type, tag: Tag, reference: str | int) -> Rule:
    """Return the rule for a data class, given its tag and what data calls it.

    Raises:
        UnserializableError: its instances hold what would not come back.
    """
    match tag:
        case Tag.ENUM | Tag.FLAG:
            return Rule(tag, records.encode_enum(reference))
        case Tag.NAMEDTUPLE:
            return Rule(tag, records.encode_namedtuple(reference))
        case Tag.SUBCLASS:
            return Rule(tag, subclasses.encode_subclass(reference, cls))
        case Tag.EXCEPTION:
            return Rule(tag, exceptions.encode_exception(reference))
        case Tag.PYDANTIC:
            models.check_slots(cls)
            return Rule(tag, models.encode_model(reference), shareable=True)
        case Tag.PYDANTIC_V1:
            models.check_slots(cls)
            return Rule(tag, models.encode_model_v1(reference), shareable=True)
        case _:
            return Rule(tag, records.encode_record(reference, cls), shareable=True)


def _known_rule(plan: known.Plan) -> Rule:
    general = Rule(Tag.PYDANTIC, models.encode_model(plan.code), shareable=True)
    return Rule(Tag.KNOWN, plan.encode, shareable=True, otherwise=general)


_KNOWN: dict[type, Rule] = {plan.cls: _known_rule(plan) for plan in known.PLANS.values()}


def encode_foreign(name: str, encode: Callable[[Any], Any]) -> Callable[[Any, Packer], bytes]:
    """A class that the program encodes itself: its name and what it gave."""
    return lambda value, packer: packer.pack([name, encode(value)])


BUILT_IN: dict[type, Rule] = {**values.RULES, **_KNOWN}
"""The rules for types that are matched exactly."""
