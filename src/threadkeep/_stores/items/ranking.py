"""Scores of a search: distances of vectors, words in texts, and rankings made into one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from importlib import import_module
from math import log
from types import ModuleType
from typing import TypeVar

from threadkeep._stores.external import extra
from threadkeep._stores.items.records import ItemRow, Metric, Place, Scored

P = TypeVar("P", Place, bytes)

_K1, _B = 1.2, 0.75  # of BM25, as FTS5 has them
_RANK = 60  # of reciprocal rank fusion: https://doi.org/10.1145/1571941.1572114


def numpy() -> ModuleType:
    """Return numpy. Import it before an event loop searches: that takes 0.1 seconds.

    Raises:
        OpenError: it is not installed.
    """
    with extra("Semantic search", "search"):
        return import_module("numpy")


def nearest(
    metric: Metric, places: Sequence[P], vectors: Sequence[bytes], query: bytes, limit: int
) -> list[tuple[P, float]]:
    """Return the best places and their scores: the cosine, inner product or minus the distance.

    `vectors` are those of the places; a place may occur several times.
    """
    if not vectors or not limit:
        return []
    np = numpy()
    wanted = np.frombuffer(query, "<f4")
    matrix = np.frombuffer(b"".join(vectors), "<f4").reshape(len(vectors), len(wanted))
    scores = matrix @ wanted
    if metric == "l2":
        scores = -np.sqrt(np.square(matrix - wanted).sum(axis=1))
    elif metric == "cosine":
        norms = np.sqrt(np.einsum("ij,ij->i", matrix, matrix)) * np.sqrt(wanted @ wanted)
        scores = np.divide(scores, norms, out=np.zeros_like(scores), where=norms > 0)
    size = limit
    while True:
        last = len(scores) - min(size, len(scores))
        some = np.flatnonzero(scores >= np.partition(scores, last)[last])  # (all of equal scores)
        found = best([(places[at], float(scores[at])) for at in some.tolist()], limit)
        if len(found) >= limit or size >= len(scores):
            return found
        size *= 4


def best(scored: Iterable[tuple[P, float]], limit: int) -> list[tuple[P, float]]:
    """Return the places with the best scores; a place counts with its best one."""
    highest: dict[P, float] = {}
    for place, score in scored:
        if place not in highest or score > highest[place]:
            highest[place] = score
    return sorted(highest.items(), key=lambda one: (-one[1], one[0]))[:limit]


def word_scores(texts: Sequence[str], words: Sequence[str]) -> list[float]:
    """Return the BM25 of each text, of tokens with spaces between them; 0 for one without any."""
    counts = [Counter(text.split(" ")) for text in texts]
    lengths = [count.total() for count in counts]
    mean = sum(lengths) / len(lengths) if lengths else 1.0
    scores = [0.0] * len(texts)
    for word in words:
        having = sum(word in count for count in counts)
        rarity = log(1 + (len(texts) - having + 0.5) / (having + 0.5))
        for at, count in enumerate(counts):
            if often := count[word]:
                scale = _K1 * (1 - _B + _B * lengths[at] / mean)
                scores[at] += rarity * often * (_K1 + 1) / (often + scale)
    return scores


def fuse(*rankings: Iterable[Scored]) -> list[Scored]:
    """Return the items of several rankings as one, by the sum of 1 / (60 + rank)."""
    rows: dict[Place, ItemRow] = {}
    scores: dict[Place, float] = {}
    for ranking in rankings:
        for rank, (row, _) in enumerate(ranking, 1):
            rows[row.place] = row
            scores[row.place] = scores.get(row.place, 0.0) + 1 / (_RANK + rank)
    ordered = sorted(rows, key=lambda place: (-scores[place], place))
    return [Scored(rows[place], scores[place]) for place in ordered]
