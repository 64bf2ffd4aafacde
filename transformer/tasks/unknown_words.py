"""Unknown words of a translation, replaced by the source words that the model attends to (PosUnk).

After decoding, Luong et al. 2015 ("Addressing the Rare Word Problem in Neural Machine Translation") replace an unknown
word by the dictionary's translation of the source word that it is aligned to, or by that word itself. Here the
alignment is the largest attention weight, as in Luong, Pham and Manning 2015 (section 4), Jean et al. 2015 and Zhou et
al. 2016.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from transformer.attention.capture import Capture
from transformer.attention.sites import sites_between
from transformer.config import UserError
from transformer.data.datasets.local_files import locate_file, read_fields
from transformer.data.datasets.translation import SentencePair
from transformer.data.tokenizers.fast_tokenizer import FastTokenizer
from transformer.data.tokenizers.tokenizer import Tokenizer, trim_at_end_token
from transformer.models.model import Model
from transformer.tasks.task import StateView
from transformer.tasks.translation_data import (
    TARGET_OVER_SOURCE,
    TranslationConfig,
    UnknownReplacement,
    pad_begin_end_ids,
)


@dataclasses.dataclass(frozen=True)
class UnknownWordReplacer:
    """Replaces the unknown words of translations.

    Attributes:
        tokenizer: The tokenizer, whose tokens are whole words.
        dictionary: The translations of source words; a word that it lacks is copied.
    """

    tokenizer: FastTokenizer
    dictionary: Mapping[str, str]

    def attended_positions(
        self, view: StateView, source_BxS: Int[Array, "B S"], tokens_BxT: Int[Array, "B T"]
    ) -> Int[Array, "B T"]:
        """Return the source position of the word that has the largest attention weight at each step of a translation.

        The attention is that of teacher forcing with the translation itself, which is that of decoding whatever the
        strategy, and the mean over all layers and heads, as in `transformer.decoding.generation.CoveragePenalty`. The
        end token and a language tag are no words.

        Args:
            view: The state.
            source_BxS: The source tokens.
            tokens_BxT: The tokens of the translations.

        Raises:
            UserError: If the model has no attention of target over source.
        """
        sites = attended_sites(view.model)
        _, bos_id, _ = pad_begin_end_ids(self.tokenizer)
        begin_Bx1 = jnp.full_like(tokens_BxT[:, :1], bos_id)
        inputs = {"source": source_BxS, "target": jnp.concatenate([begin_Bx1, tokens_BxT[:, :-1]], axis=1)}
        _, aux = view.model.apply(view.variables, inputs, train=False, capture=Capture(sites))
        site_weights = []
        for site in sites:
            weights_LxBxHxTxS = aux.maps[site].weights
            assert weights_LxBxHxTxS is not None
            site_weights.append(jnp.mean(weights_LxBxHxTxS, axis=(0, 2)))
        mean_BxTxS = jnp.mean(jnp.stack(site_weights), axis=0)
        no_words = np.array(sorted(self.tokenizer.special_ids - {self.tokenizer.unk_id}))
        words_BxS = ~jnp.isin(source_BxS, no_words)
        return jnp.argmax(jnp.where(words_BxS[:, None], mean_BxTxS, -1), axis=-1)

    def decode(self, pair: SentencePair, tokens: Sequence[int], positions: Sequence[int]) -> str:
        """Decode a translation, with its unknown words replaced.

        Args:
            pair: The source sentence and its language.
            tokens: The tokens of its translation.
            positions: The source position for each of them, from `attended_positions`.

        Returns:
            The translation. An unknown word stays if the source has no word.
        """
        words, unknown = self.tokenizer.token_texts(pair.source), {}
        tags = len(self.tokenizer.language_tag_ids(pair.language))
        for place, (token, position) in enumerate(zip(tokens, positions, strict=True)):
            if token == self.tokenizer.unk_id and words:
                word = words[int(position) - tags]
                unknown[place] = self.dictionary.get(word, word)
        return self.tokenizer.decode_words(tokens, unknown)

    def unknown_share(self, translations: Iterable[Iterable[int]]) -> float:
        """Return the share of unknown words among the words of translations, up to their end tokens."""
        words = [n for tokens in translations for n in trim_at_end_token(tokens, None, self.tokenizer.eos_id)]
        return sum(n == self.tokenizer.unk_id for n in words) / max(len(words), 1)


def make_unknown_word_replacer(config: TranslationConfig, tokenizer: Tokenizer) -> UnknownWordReplacer | None:
    """Return what replaces the unknown words of translations; None for `replace_unknown=none`.

    Raises:
        UserError: If the tokenizer has no unknown token or splits words into pieces, or the dictionary cannot be read.
    """
    how = config.replace_unknown
    if how is UnknownReplacement.NONE:
        return None
    if tokenizer.unk_id is None:
        raise UserError(
            f"replace_unknown={how.value} replaces unknown words, and this run's tokenizer has no unknown token: say "
            "replace_unknown=none, or train with config.task.tokenizer=words"
        )
    if isinstance(tokenizer, FastTokenizer) and tokenizer.is_word_level:
        path = locate_file(config.unknown_dictionary, config.data_dir)
        pairs = read_fields(path, ("source", "target")) if how is UnknownReplacement.DICTIONARY else []
        # The first translation of a word counts.
        return UnknownWordReplacer(tokenizer, {source: target for source, target in reversed(pairs)})
    raise UserError(
        f"replace_unknown={how.value} replaces unknown words, and this run's tokenizer splits words into pieces: say "
        "replace_unknown=none, or train with config.task.tokenizer=words"
    )


def attended_sites(model: Model) -> tuple[str, ...]:
    """Return the names of the model's attention modules of target over source.

    Raises:
        UserError: If it has none.
    """
    sites = tuple(site.name for site in sites_between(model.sites, *TARGET_OVER_SOURCE))
    if not sites:
        raise UserError(
            "replace_unknown reads the attention of target over source, which this model does not have: say "
            "replace_unknown=none"
        )
    return sites
