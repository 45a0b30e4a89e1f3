"""The embedding model that runs in the process."""

import numpy as np

from threadkeep.store import LocalEmbeddings


def test_texts_of_one_meaning_are_near_each_other():
    model = LocalEmbeddings()

    cat, kitten, tax = np.array(
        model.embed_documents(["a cat sleeps", "a kitten naps", "tax law is complicated"])
    )

    assert cat.shape == (model.dims,)
    assert cat @ kitten > 2 * (cat @ tax)
    assert model.embed_query("a cat sleeps") == cat.tolist()
