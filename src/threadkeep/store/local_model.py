"""Embedding model that runs in the process: its weights are in the package `wordllama`."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from langchain_core.embeddings import Embeddings

from threadkeep._stores.extras import extra

DIMS = 256


class LocalEmbeddings(Embeddings):
    """Static word embeddings (WordLlama): some 16 MB, no network and no key, English at best.

    `dims` is 256. Good enough for tests, examples and small memories; a model of a provider finds
    more.

    Raises:
        OpenError: wordllama is not installed.
    """

    dims = DIMS

    def __init__(self) -> None:
        with extra("The local embedding model", "embeddings"):
            wordllama = import_module("wordllama")
        # (it looks for its own files in a folder of another name, unless it is told)
        folder = Path(str(wordllama.__file__)).parent
        self._model: Any = wordllama.WordLlama.load(
            cache_dir=folder, dim=DIMS, disable_download=True
        )

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return the vector of each text."""
        vectors: list[list[float]] = self._model.embed(texts, norm=True).tolist()
        return vectors

    def embed_query(self, text: str) -> list[float]:
        """Return the vector of a query."""
        return self.embed_documents([text])[0]
