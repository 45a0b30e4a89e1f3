"""Digests of messages without a model: informative sentences, topics, names, decisions, questions.

Pure functions of texts in English and Chinese. They look at each distinct word once.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple, TypeAlias

MIN_CHARS = 20
_HEAD_CHARS, _TAIL_CHARS = 400, 200  # read of each message
_ITEM_CHARS = 160
_TOPICS = 5
_FOUND = 12  # decisions, and names
_QUESTIONS = 3
_TRIED = 40  # sentences, best first

# A full stop within a number or a name does not end a sentence.
# (The set comes first, because `re` finds it quickly.)
_SENTENCE_END = re.compile(r"[.!?。！？；\n](?:(?<![.!?])\s*|[\"')\]]?(?:\s+|$))")
_QUESTION = ("?", "？", '?"', "?)")
_PUNCTUATION = ".,;:!?\"'()[]{}<>*`…—-"
_HAN = re.compile("[\u4e00-\u9fff]")
# Words of Chinese grammar. The text between them is mostly words and terms.
_GRAMMAR = sorted(
    "的了是在和与就都把被我你他她它们这那也又很吗呢吧啊呀着过给请及或但而且从到对为以所将会只有可能"
)
_TERMS = "".join(
    f"{chr(ord(before) + 1)}-{chr(ord(after) - 1)}"
    for before, after in zip(["\u4dff", *_GRAMMAR], [*_GRAMMAR, "\ua000"], strict=True)
    if ord(after) - ord(before) > 1
)
_MIXED_WORD = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.:%/@-]*|[{_TERMS}]{{2,}}")
_STOPPED = """
a an the and or but if so as at by for from in into of off on onto out over to up with than then
too i me my we us our you your he him his she her it its they them their this that these those
is am are was were be been being do does did done have has had having not no can could would
should will shall may might about there here what which who when where why how all any some more
most very just also only i'm i'll we'll we're you're don't let let's please thanks thank ok okay
yes hello hi sure like need want make get got one two after before while because think maybe
sounds good that's it's well now new use using
"""
_DECIDING = """
decide decided decision agree agreed choose chose chosen must concluded conclusion approved
finalized deadline settled we'll
"""
_IDENTIFIER = re.compile(r"[\d_]|.[A-Z]")
_NAME_WEIGHT = 5
_QUOTED = re.compile("[「《“`][^「」《》“”`\n]{2,30}[」》”`]")
_STOP_WORDS = frozenset(_STOPPED.split())
_DECISION_WORDS = frozenset(_DECIDING.split())
_DECIDED = re.compile("决定|确定|确认|采用|选用|选择|同意|约定|结论|最终|我们将|必须|方案是|截止")

Texts: TypeAlias = Sequence[tuple[str, str]]
"""Texts of messages, each with the message's type: "human", "ai", "tool" or another."""


class Digest(NamedTuple):
    """Parts of a summary. Questions and decisions are in text order, the rest by importance."""

    content: str
    key_topics: list[str]
    decisions: list[str]
    entities: list[str]
    open_questions: list[str]


class _Sentence(NamedTuple):
    place: int  # its order in the conversation
    speaker: str
    text: str
    words: list[str]
    asks: bool
    decides: bool
    score: float


# -- cutting ---------------------------------------------------------------------------


def shortened(text: str, limit: int) -> str:
    """Return a text on one line, cut after a sentence or between words if it is too long."""
    text = " ".join(text[: 8 * limit + 1000].split())
    if len(text) <= limit:
        return text
    ends = [end.end() for end in _SENTENCE_END.finditer(text[: limit + 1])]
    ends = [end for end in ends if len(text[:end].rstrip()) <= limit and end <= limit + 1]
    if ends and ends[-1] >= limit // 2:
        return text[: ends[-1]].rstrip()
    cut = text[: limit - 1]
    space = cut.rfind(" ")
    if text[limit - 1] != " " and space >= limit // 2:
        cut = cut[:space]
    return cut.rstrip(" …") + "…"


def middle_cut(text: str, limit: int) -> str:
    """Return a text, without its middle if it is too long."""
    if len(text) <= limit:
        return text
    head = limit * 2 // 3
    return f"{text[:head]} … {text[head - limit + 3 :]}"


# -- digests ---------------------------------------------------------------------------


def digest(texts: Texts, before: str, limit: int) -> Digest:
    """Return a digest of messages. The content before fills at most half of it."""
    old = list(_spoken([("", before)]))
    new = list(_spoken(texts))
    known = _Vocabulary([words for _, _, words in (*old, *new)])
    read = [known.sentence(place, *each) for place, each in enumerate(new, len(old))]
    kept = _chosen(
        [known.sentence(place, *each) for place, each in enumerate(old)],
        limit // 2 if read else limit,
        [],
    )
    kept += _chosen(read, limit - sum(len(each.text) + 1 for each in kept), kept)
    content = " ".join(each.text for each in sorted(kept))
    decided = [each.text for each in read if each.decides]
    return Digest(
        re.sub("(?<=[。！？；]) ", "", content),
        known.topics(),
        [shortened(text, _ITEM_CHARS) for text in decided[-_FOUND:]],
        known.names(each.text for each in read),
        _open_questions(read),
    )


def sentences(text: str) -> list[str]:
    """Return the sentences of a text, or of a long text only the first and the last ones."""
    if len(text) > _HEAD_CHARS + _TAIL_CHARS:
        head, tail = sentences(text[:_HEAD_CHARS]), sentences(text[-_TAIL_CHARS:])
        return [*(head[:-1] or head), *tail[1:]]  # (without the cut ones)
    ends = [end.end() for end in _SENTENCE_END.finditer(text)]
    found = [text[i:j].strip() for i, j in zip([0, *ends], [*ends, len(text)], strict=True)]
    return [each for each in found if len(each) > 1]


def _spoken(texts: Texts) -> Iterator[tuple[str, str, list[str]]]:
    """Yield the speaker, the text and the words of each sentence."""
    for speaker, text in texts:
        words = _MIXED_WORD.findall if _HAN.search(text, 0, _HEAD_CHARS) else str.split
        for sentence in sentences(text):
            yield speaker, sentence, words(sentence)


class _Vocabulary:
    """The distinct words of some sentences, and the weight of each."""

    def __init__(self, spoken: list[list[str]]) -> None:
        counts = Counter(chain.from_iterable(spoken))
        firsts = Counter(words[0] for words in spoken if words)
        self._weights = dict.fromkeys(counts, 0.0)
        self._deciding = set()
        self._topics: Counter[str] = Counter()
        self._names: Counter[str] = Counter()
        for word, count in counts.items():
            plain = word.strip(_PUNCTUATION)
            lower = plain.lower()
            if lower in _DECISION_WORDS:
                self._deciding.add(word)
            elif plain and lower not in _STOP_WORDS:
                self._weights[word] = min(count, 5)
                if _IDENTIFIER.search(plain) or (plain[0].isupper() and count > firsts[word]):
                    self._names[plain] += count
                    self._weights[word] += _NAME_WEIGHT
                else:
                    self._topics[lower] += count

    def sentence(self, place: int, speaker: str, text: str, words: list[str]) -> _Sentence:
        asks = text.endswith(_QUESTION)
        decides = not asks and (not self._deciding.isdisjoint(words) or _decides(text))
        weight = sum(map(self._weights.__getitem__, words)) / (len(words) + 4)
        if not place:
            weight *= 1.3  # the first often states the task
        if speaker == "tool":
            weight *= 0.5
        if asks:
            weight *= 0.6
        return _Sentence(place, speaker, text, words, asks, decides, weight + 2.0 * decides)

    def topics(self) -> list[str]:
        common = self._topics.most_common(_TOPICS)
        return [word for word, count in common if count > 1 and len(word) > 1]

    def names(self, texts: Iterable[str]) -> list[str]:
        quoted = Counter(name[1:-1] for text in texts for name in _QUOTED.findall(text))
        found = (self._names + quoted).most_common(2 * _FOUND)
        return [name for name, _ in found if len(name) > 1][:_FOUND]


def _decides(text: str) -> bool:
    if text.isascii():
        return "We will " in text or "we will " in text or "go with " in text
    return bool(_DECIDED.search(text))


def _chosen(read: list[_Sentence], room: int, known: list[_Sentence]) -> list[_Sentence]:
    """Return the best sentences that fit and do not repeat each other."""
    chosen: list[_Sentence] = []
    taken = [frozenset(each.words) for each in known]
    distinct = {each.text: each for each in reversed(read)}.values()
    for each in sorted(distinct, key=lambda one: (-one.score, one.place))[:_TRIED]:
        if room < MIN_CHARS:
            break
        words = frozenset(each.words)
        if not each.score or any(_repeats(words, other) for other in taken):
            continue
        if len(each.text) > room and chosen:
            continue
        fitting = each._replace(text=shortened(each.text, room))
        chosen.append(fitting)
        taken.append(words)
        room -= len(fitting.text) + 1
    return chosen


def _repeats(words: frozenset[str], other: frozenset[str]) -> bool:
    return len(words & other) > 0.6 * min(len(words), len(other))


def _open_questions(read: list[_Sentence]) -> list[str]:
    """Return the last questions whose words no other speaker repeats later."""
    found: list[str] = []
    said: dict[str, set[str]] = {}  # by each speaker, later
    for each in reversed(read):
        words = {word.strip(_PUNCTUATION) for word in each.words}
        if each.asks and each.speaker != "tool":
            words = {word for word in words if word.lower() not in _STOP_WORDS}
            others = (later for speaker, later in said.items() if speaker != each.speaker)
            if all(words.isdisjoint(later) for later in others):
                found.append(shortened(each.text, _ITEM_CHARS))
            if len(found) == _QUESTIONS:
                break
        said.setdefault(each.speaker, set()).update(words)
    return found[::-1]
