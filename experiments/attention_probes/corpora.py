"""The corpora that ask one thing of attention, by their names, with numbers of their own behind a slash."""

import dataclasses
from collections.abc import Mapping

from experiments.attention_probes.marked_texts import Corpus
from experiments.attention_probes.sentence_corpora import Agreement, Coreference, CoreferenceByClue
from experiments.attention_probes.symbol_corpora import Brackets, Motifs, Retrieval, Sorting, TwoPlaces
from transformer.config import UserError, from_config, nearest
from transformer.data.datasets.options import whole_numbers

CORPORA: Mapping[str, type] = {
    "coreference": Coreference,
    "coreference_by_clue": CoreferenceByClue,
    "agreement": Agreement,
    "two_places": TwoPlaces,
    "retrieval": Retrieval,
    "sorting": Sorting,
    "brackets": Brackets,
    "motifs": Motifs,
}


def open_corpus(dataset: str) -> Corpus:
    """The corpus of a name such as "brackets" or "brackets/kinds=2,depth=4".

    Errors: UserError for an unknown name or number, and for numbers that cannot be.
    """
    name, _, options = dataset.partition("/")
    if name not in CORPORA:
        raise UserError(f"config.task.dataset={dataset!r} is no corpus: {nearest(name, CORPORA)}")
    first = dataclasses.fields(CORPORA[name])[0]
    corpus: Corpus = from_config(CORPORA[name], whole_numbers(name, options, f"{first.name}={first.default}"), name)
    return corpus
