"""Each phrase of the templates has a translation."""

import json
import re
from importlib import resources

import pytest

from threadkeep.threads import Lifecycle, ThreadStatus
from threadkeep.threads.statistics import _PARTS
from threadkeep.ui.page import LANGUAGES, _environment

HERE = resources.files("threadkeep.ui")
OTHERS = sorted(LANGUAGES.keys() - {"en"})
VARIABLES = {
    *map(str, {*Lifecycle, *ThreadStatus} - {Lifecycle.ACTIVE}),
    *("input", "start", "update", "fork", "next"),  # kinds of steps
    *("channel", "retention", "tiering", "items", "cache", "index", "batch", "adopt"),  # of advice
    *(part.replace("_", " ") for part in (*_PARTS, "unread")),  # of statistics
}
PLACE = re.compile(r"%\((\w+)\)s")


def translations(language):
    return json.loads(HERE.joinpath(f"{language}.json").read_text("utf-8"))


def phrases():
    """All phrases, each under the one that a translation is looked up by (the plural)."""
    found = set()
    for file in HERE.joinpath("templates").iterdir():
        for _, _, phrase in _environment("en").extract_translations(file.read_text("utf-8")):
            one, *plural = phrase if isinstance(phrase, tuple) else [phrase]
            found.add(plural[0] if plural and plural[0] else one)
    return found - {None} | VARIABLES


@pytest.mark.parametrize("language", OTHERS)
def test_every_phrase_is_translated_and_no_other(language):
    assert phrases() == translations(language).keys()


@pytest.mark.parametrize("language", OTHERS)
def test_translations_keep_the_places_for_values(language):
    for phrase, translated in translations(language).items():
        assert sorted(PLACE.findall(phrase)) == sorted(PLACE.findall(translated)), phrase
        assert translated.strip() == translated != ""
