"""Each phrase of the templates, and each error of the page, has a translation."""

import ast
import json
import re
from importlib import resources

import pytest

from threadkeep import errors
from threadkeep.threads import Lifecycle, ThreadStatus, queries
from threadkeep.threads.statistics import _PARTS
from threadkeep.ui.page import LANGUAGES, _environment, said

HERE = resources.files("threadkeep.ui")
OTHERS = sorted(LANGUAGES.keys() - {"en"})
VARIABLES = {
    *map(str, {*Lifecycle, *ThreadStatus} - {Lifecycle.ACTIVE}),
    *("input", "start", "update", "fork", "next"),  # kinds of steps
    *("channel", "retention", "tiering", "items", "cache", "index", "batch", "adopt"),  # of advice
    *(part.replace("_", " ") for part in (*_PARTS, "unread")),  # of statistics
}
ERRORS = {  # kinds of errors of a store that people see on the page
    *(errors.ThreadkeepError, errors.InvalidArgumentError, errors.NotFoundError),
    *(errors.ThreadNotFoundError, errors.CheckpointNotFoundError, errors.ConflictError),
    *(errors.ThreadDeletedError, errors.StateError, errors.HeldError, errors.LeaseLostError),
    *(errors.ThreadArchivedError, errors.ThreadExistsError, errors.CodecError),
    *(errors.UnknownTypeError, errors.CorruptionError, errors.TamperedDataError),
    *(errors.WrongKeyError, errors.DestroyedKeyError, errors.NewerFormatError),
    *(errors.BackendError, errors.OpenError, errors.UnreachableError),
    *(errors.StatementTimeoutError, errors.ClosedError, errors.LockedError),
    *(errors.ThreadLockedError, errors.ReadOnlyError, errors.DiskFullError),
    *(errors.UnfinishedErasureError, errors.StaleThreadError),
}
OTHER_ERRORS = {  # and of `app.py` and `graphs.py`, which also raise errors at the start
    *("Not Found", "Method Not Allowed", "The page failed here; the log says why."),
    *("Start the page with the graph of this thread.", "Wait for the end of one."),
    "Wait for the end of that run.",
    *(*queries.HINTS.values(), "Close the quote, and quote the whole value."),
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
    kinds = {kind.__doc__.partition("\n")[0] for kind in ERRORS}
    return (found - {None}) | VARIABLES | kinds | OTHER_ERRORS | raised()


def raised():
    """The sentences of the page's own errors that have no values in them."""
    return {
        text
        for file in [*HERE.glob("*.py"), *HERE.glob("pages/*.py")]
        if file.name not in ("app.py", "graphs.py")
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        for text in sentences(node)
    }


def sentences(node):
    """Yield the text of an error, and hints."""
    name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
    if hasattr(errors, name) or name == "HTTPException":
        hints = [one.value for one in node.keywords if one.arg == "hint"]
        texts = [*node.args[:2], *hints]
    elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "hint":
        texts = [node.value]
    else:
        texts = []
    for one in texts:
        if isinstance(one, ast.Constant) and isinstance(one.value, str):
            yield one.value


@pytest.mark.parametrize("language", OTHERS)
def test_every_phrase_is_translated_and_no_other(language):
    assert phrases() == translations(language).keys()


@pytest.mark.parametrize("language", OTHERS)
def test_translations_keep_the_places_for_values(language):
    for phrase, translated in translations(language).items():
        assert sorted(PLACE.findall(phrase)) == sorted(PLACE.findall(translated)), phrase
        assert translated.strip() == translated != ""


def test_an_error_is_told_in_the_language_of_its_reader():
    missing = errors.ThreadNotFoundError(thread="a")
    assert said(missing, "en") == str(missing)
    assert said(missing, "zh") == "没有这个线程。 (thread 'a')"
    unknown = errors.InvalidArgumentError("x:y: not z.", hint="Reload the page.")
    assert said(unknown, "zh") == "输入的值无效。\nx:y: not z.\n请重新加载页面。"
    assert said(errors.NewerShapeError(), "zh").startswith("有一个值无法编码或解码。\n")
    assert said(ValueError("x"), "zh") == said("x", "zh") == "x"
