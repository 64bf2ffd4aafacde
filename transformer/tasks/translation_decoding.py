"""Translate new sentences with a trained run, and encode them to map its attention."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from transformer.attention.sites import sites_between
from transformer.config import UserError
from transformer.data.batches import BucketedPairBatches
from transformer.data.datasets.translation import SentencePair
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.decoding.constraints import Prompt
from transformer.decoding.generation import CoveragePenalty, DecodedSequences, SpecialTokens, generate
from transformer.decoding.stop_sequences import cut_at_stop
from transformer.models.model import Variables
from transformer.tasks.base_task import check_text_length
from transformer.tasks.decoding_config import DecodingConfig
from transformer.tasks.task import Batch, EncodedInputs, StateView
from transformer.tasks.text_generation import output_vocabulary_size
from transformer.tasks.translation_data import (
    NO_FRAME,
    TARGET_OVER_SOURCE,
    SentenceFrame,
    encode_pairs,
    pad_begin_end_ids,
    pair_axis_labels,
)
from transformer.tasks.unknown_words import UnknownWordReplacer


def translate(
    view: StateView,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    decoding: DecodingConfig,
    *,
    language: str | None = None,
    max_length: int | None = None,
    replacer: UnknownWordReplacer | None = None,
    frame: SentenceFrame = NO_FRAME,
) -> list[SentencePair]:
    """Translate sentences.

    Args:
        view: The state.
        tokenizer: The tokenizer.
        texts: The source sentences.
        decoding: The decoding options.
        language: The target language; None for a run of one language.
        max_length: The model's number of positions; None if it has no limit.
        replacer: Replaces unknown words; None for none.
        frame: Further tokens around every sentence.

    Returns:
        The sentences with their best translations, cut before a stop string.

    Raises:
        UserError: If there is no sentence, a sentence or `decoding.max_new_tokens` exceeds `max_length`, the run was
            not trained on the language, or unknown words are to be replaced and the model has no attention to replace
            them by.
    """
    if not any(text.strip() for text in texts):
        raise UserError("no sentence to translate: give one by --text, or one a line on standard input")
    check_language(tokenizer, language)
    if max_length is not None and decoding.max_new_tokens > max_length:
        raise UserError(
            f"--max_new_tokens={decoding.max_new_tokens} exceeds the model's {max_length} positions: pass at most "
            f"{max_length}"
        )
    tokenizer.warn_of_unknown_parts(texts)
    source = [SentencePair(text.strip(), "", language or "") for text in texts]
    encoded = encode_pairs(tokenizer, source, frame)
    check_text_length(texts, encoded.sources, max_length)
    widest = max(map(len, encoded.sources))
    batch = BucketedPairBatches(encoded, lengths=(widest,), tokens=widest * len(texts), seed=None)[0]
    source_only = {"source": batch["source"]}
    constraints = decoding.constraints(
        tokenizer, output_vocabulary_size(view, source_only), begins=True, stop_sequences=decoding.stop_sequences
    )
    tokens = SpecialTokens(*pad_begin_end_ids(tokenizer), other_end_ids=decoding.end_ids)
    begin = np.full((len(texts), 1), tokens.bos_id, np.int32)
    prompt = None if tokens.bos_id is None else Prompt(begin, np.ones(len(texts), np.int32))

    @jax.jit
    def run(variables: Variables, inputs: Batch) -> tuple[DecodedSequences, Array | None]:
        rollout = generate(
            view.model,
            variables,
            inputs,
            strategy=decoding.strategy,
            length=decoding.max_new_tokens,
            tokens=tokens,
            key=jax.random.key(decoding.seed),
            # The begin token has occurred; where it is also the end token, as in BART, that counts.
            prompt=prompt,
            constraints=constraints,
            coverage=make_coverage_penalty(view, jnp.asarray(inputs["source"]), tokenizer, decoding.coverage_penalty),
        )
        rollout = rollout._replace(tokens=tokens.with_one_end(rollout.tokens))
        if replacer is None:
            return rollout, None
        trained = view._replace(variables=variables)
        return rollout, replacer.attended_positions(trained, jnp.asarray(inputs["source"]), rollout.tokens[:, 0])

    rollout, positions_BxT = run(view.variables, source_only)
    best_BxT, lengths_B = np.asarray(rollout.tokens[:, 0]), np.asarray(rollout.lengths[:, 0])
    targets = [tokenizer.decode(tokens[:length]) for tokens, length in zip(best_BxT, lengths_B, strict=True)]
    if replacer is not None:
        rows = zip(source, best_BxT, np.asarray(positions_BxT), lengths_B, strict=True)
        targets = [replacer.decode(pair, row[:length], positions[:length]) for pair, row, positions, length in rows]
    return [
        pair._replace(target=cut_at_stop(target, decoding.stop_sequences))
        for pair, target in zip(source, targets, strict=True)
    ]


def check_language(tokenizer: Tokenizer, language: str | None) -> None:
    """Check the target language of a request.

    Args:
        tokenizer: The tokenizer, which has a tag for each language if the run knows several.
        language: The language; None if none is given.

    Raises:
        UserError: If the tokenizer has no tag of the language, or none is given although the run knows several.
    """
    languages = tokenizer.languages
    if languages and language not in languages:
        if language is None:
            raise UserError(
                f"this run learned several languages ({', '.join(languages)}): choose one, with "
                f"--target_language={languages[0]} on a command or language={languages[0]!r} in Python"
            )
        raise UserError(f"the language {language!r} was not learned by this run; choose one of: {', '.join(languages)}")
    if language and not languages:
        raise UserError(f"the language {language!r} cannot be chosen: this run knows one direction alone; leave it out")


def make_coverage_penalty(
    view: StateView, source_BxS: Int[Array, "B S"], tokenizer: Tokenizer, weight: float
) -> CoveragePenalty | None:
    """Return the coverage penalty over the attention of target to source.

    Args:
        view: The state.
        source_BxS: The source tokens.
        tokenizer: The tokenizer.
        weight: The weight of the penalty.

    Returns:
        The penalty; None if the weight is 0.

    Raises:
        UserError: If the weight is not 0 and the model has no attention of target to source.
    """
    if not weight:
        return None
    sites = tuple(site.name for site in sites_between(view.model.sites, *TARGET_OVER_SOURCE))
    if not sites:
        raise UserError(
            f"coverage_penalty={weight} reads the attention of target over source, which this model has not: leave it "
            "out, or say 0"
        )
    pad_id, _, _ = pad_begin_end_ids(tokenizer)
    return CoveragePenalty(weight, sites, source_BxS != pad_id)


def encode_pair_inputs(
    view: StateView, tokenizer: Tokenizer, pairs: Sequence[SentencePair], frame: SentenceFrame = NO_FRAME
) -> EncodedInputs:
    """Encode sentences with their translations as a model reads them, for maps under teacher forcing.

    A model's own translation may have more tokens when it is encoded again; it is cut to the model's positions.

    Args:
        view: The state.
        tokenizer: The tokenizer.
        pairs: The sentences and their translations.
        frame: Further tokens around every sentence.
    """
    encoded = encode_pairs(tokenizer, pairs, frame)
    targets = [target[: view.model.max_length] for target in encoded.targets]
    encoded = dataclasses.replace(encoded, targets=targets)
    longest = max(map(len, [*encoded.sources, *encoded.targets]))
    batch = BucketedPairBatches(encoded, lengths=(longest,), tokens=longest * len(pairs), seed=None)[0]
    inputs = {name: jnp.asarray(batch[name]) for name in ("source", "target")}
    lengths_B = np.array([len(target) for target in targets])
    is_label_BxT = np.arange(batch["labels"].shape[1]) < lengths_B[:, None]
    predicted_BxT = np.where(is_label_BxT, batch["labels"], -1)
    labels = pair_axis_labels(tokenizer, pairs, view.model.sites, encoded)
    return EncodedInputs(inputs, "forward", labels, predicted_BxT)
