"""Translation: sentence pairs in, a target sentence out."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Key

from transformer.attention.sites import Site
from transformer.config import UserError, convert_value
from transformer.data.batches import BatchSource, BucketedPairBatches, fingerprint
from transformer.data.datasets.local_files import BY_CONTENT, join_notes
from transformer.data.datasets.split_overlap import describe_overlap
from transformer.data.datasets.translation import SentencePair, describe_pair_headers, is_pair_files
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.decoding.generation import SpecialTokens, generate
from transformer.decoding.sampling import Sampling
from transformer.models.task_interface import TRANSLATION, InputSpec, TaskInterface
from transformer.tasks.axis_labels import AxisLabels
from transformer.tasks.base_task import check_input_texts, check_text_length, describe_splits, report_means
from transformer.tasks.decoding_config import DecodingConfig
from transformer.tasks.hard_attention_reinforce import (
    add_reinforce_loss,
    initial_baseline,
    samples_attention,
    token_log_likelihood,
)
from transformer.tasks.losses import add_z_loss, chunked_token_loss
from transformer.tasks.sequence_generation_base import TokenSequenceTask
from transformer.tasks.sequence_level_training import (
    SequenceObjective,
    expected_reward_surrogate,
    gleu,
    is_first_occurrence,
)
from transformer.tasks.synthetic_data import synthetic_encoded_splits
from transformer.tasks.task import (
    Batch,
    EncodedInputs,
    Evaluation,
    EvaluationReport,
    InputReader,
    InputTexts,
    LossAux,
    Objective,
    PredictionRequest,
    Predictions,
    PyTree,
    StateView,
    TaskSpec,
)
from transformer.tasks.text_task_base import predictions_with_maps
from transformer.tasks.translation_data import (
    TranslationConfig,
    TranslationSplit,
    UnknownReplacement,
    choose_varied_pairs,
    encode_pairs,
    load_encoded_splits,
    pad_begin_end_ids,
    pair_axis_labels,
)
from transformer.tasks.translation_decoding import check_language, encode_pair_inputs, translate
from transformer.tasks.translation_metrics import (
    alignment_evaluation,
    evaluation_batches,
    make_decoding_step,
    translation_evaluation,
)
from transformer.tasks.unknown_words import attended_sites, make_unknown_word_replacer


class Translation(TokenSequenceTask):
    """The task of translation; implements transformer.tasks.task.Task."""

    condition_inputs = ("source",)

    def __init__(
        self,
        config: TranslationConfig,
        tokenizer: Tokenizer,
        splits: Mapping[str, TranslationSplit],
        rows_multiple: int = 1,
    ):
        self.config, self.tokenizer = config, tokenizer
        self.special_tokens = SpecialTokens(*pad_begin_end_ids(tokenizer))
        self._splits, self._train, self._rows_multiple = splits, splits["train"], rows_multiple
        self.interface, longest = make_task_interface(config, tokenizer), max(config.bucket_lengths)
        self.objectives = (Objective("translation", self.loss),)
        validation, test = splits[config.validation_split], splits[config.test_split]
        self.evaluations = self._evaluations(validation, test)
        probe_split = self._select_probe_pairs(validation, longest)
        self._probed_pairs = probe_split.pairs
        batch = BucketedPairBatches(
            probe_split.encoded, lengths=(longest,), tokens=longest * len(probe_split.pairs), seed=None
        )[0]
        # With the reference translations: teacher forcing.
        self.probe_batch = {name: batch[name] for name in ("source", "target")}

    def _select_probe_pairs(self, validation: TranslationSplit, longest: int) -> TranslationSplit:
        """Choose the pairs whose maps are stored, among those that fit a batch, so that maps and labels agree."""
        fitting = validation.encoded.indices_within_length(longest)
        pair_numbers = choose_varied_pairs(
            [validation.pairs[number] for number in fitting], self.config.num_probe_examples
        )
        return validation.part([fitting[number] for number in pair_numbers])

    def _evaluations(self, validation: TranslationSplit, test: TranslationSplit) -> tuple[Evaluation, ...]:
        config, tokenizer = self.config, self.tokenizer
        decoded = validation.part(range(min(config.num_decoded_examples, len(validation.pairs))))
        losses = [
            Evaluation(
                name="loss",
                split=name,
                batches=evaluation_batches(config, split.encoded),
                step=self.loss_sums,
                finish=report_means,
                at_end=at_end,
                parameters=config.eval_parameters,
            )
            for name, split, at_end in ((config.validation_split, validation, False), (config.test_split, test, True))
        ]
        replacer = make_unknown_word_replacer(config, tokenizer)
        decode = make_decoding_step(config, tokenizer, replacer)
        options: dict[str, Any] = {"length_bounds": config.length_bounds, "replacer": replacer}
        translations = (
            translation_evaluation(config, tokenizer, decoded, decode, num_samples=3, **options),
            translation_evaluation(config, tokenizer, test, decode, num_samples=20, at_end=True, **options),
        )
        has_alignments = any(pair.word_alignment is not None for pair in test.pairs)
        alignments = (alignment_evaluation(config, tokenizer, validation, test),) if has_alignments else ()
        rewards = Evaluation(
            name="reward",
            split=config.validation_split,
            batches=evaluation_batches(config, decoded.encoded),
            step=self._reward_sums,
            finish=_mean_reward,
            parameters=config.eval_parameters,
        )
        return (*losses, *translations, *alignments, *([] if config.objective is SequenceObjective.NLL else [rewards]))

    def fingerprint(self) -> dict[str, str]:
        """Return the SHA-256 of every split's sentences."""
        return {
            name: fingerprint(text for pair in split.pairs for text in (pair.source, pair.target, pair.language))
            for name, split in self._splits.items()
        }

    @property
    def data_summary(self) -> tuple[str, ...]:
        """How many pairs each split has, which files lack a header, and how many pairs are too long for any batch."""
        longest = max(self.config.bucket_lengths)
        sizes = {name: len(split.pairs) for name, split in self._splits.items()}
        name, held_out = self.config.dataset, self.config.held_out
        cut = held_out.describe(BY_CONTENT) if is_pair_files(name) else ""
        headers = describe_pair_headers(name, self.config.data_dir, self.config.languages, held_out)
        long = {
            split_name: sizes[split_name] - len(split.encoded.indices_within_length(longest))
            for split_name, split in self._splits.items()
        }
        lines = [describe_splits(name, sizes, "pairs", join_notes((cut, headers)))]
        if any(long.values()):
            counts = ", ".join(f"{count:,} {name}" for name, count in long.items() if count)
            lines.append(
                f"of these {counts} pairs are longer than max(config.task.bucket_lengths)={longest} tokens: they are "
                "not "
                "trained on, have no loss, and count as empty translations"
            )
        sources = {name: [pair.source for pair in split.pairs] for name, split in self._splits.items()}
        lines += filter(None, [describe_overlap(sources, "sources")])
        return tuple(lines)

    def training_batches(self, seed: int) -> BatchSource:
        return BucketedPairBatches(
            self._train.encoded,
            lengths=self.config.bucket_lengths,
            tokens=self.config.tokens_per_batch,
            seed=seed,
            rows_multiple=self._rows_multiple,
        )

    def init_task_state(self, view: StateView, key: Key[Array, ""]) -> PyTree:
        """Return the reward baseline of a model with sampled attention; nothing for other models.

        Raises:
            UserError: If such a model is to be trained on an expected reward, or if unknown words are to be replaced
                and the model has no attention of target over source.
        """
        if self.config.replace_unknown is not UnknownReplacement.NONE:
            attended_sites(view.model)
        if not samples_attention(view.model):
            return super().init_task_state(view, key)
        if self.config.objective is not SequenceObjective.NLL:
            raise UserError(
                f"config.task.objective={self.config.objective.value} draws translations, and this model's "
                "attention draws as well: say config.task.objective=nll or config.model.normalizer=softmax"
            )
        return initial_baseline()

    def prepare_batch(self, view: StateView, batch: Batch, key: Key[Array, ""]) -> tuple[Batch, PyTree]:
        """Sample the model's own translations, if it is trained on an expected reward.

        For minimum risk training the reference is one of them.

        Returns:
            The batch with `drawn` [B, N, T], their `rewards` [B, N] and `counted` [B, N], which of them count; and
            `task_state` unchanged.
        """
        if self.config.objective is SequenceObjective.NLL:
            return batch, view.task_state
        labels_BxT = jnp.asarray(batch["labels"])
        rollout = generate(
            view.model,
            view.variables,
            {"source": jnp.asarray(batch["source"])},
            strategy=Sampling(num_beams=self.config.num_samples),
            length=labels_BxT.shape[1],
            tokens=self.special_tokens,
            key=key,
        )
        drawn_BxNxT = rollout.tokens
        if self.config.objective is SequenceObjective.MRT:
            drawn_BxNxT = jnp.concatenate([labels_BxT[:, None], drawn_BxNxT], axis=1)
        reference_BxNxT = jnp.broadcast_to(labels_BxT[:, None], drawn_BxNxT.shape)
        rewards_BxN = gleu(drawn_BxNxT, self._words(drawn_BxNxT), reference_BxNxT, self._words(reference_BxNxT))
        real_Bx1 = jnp.any(self.predicted_steps(batch), axis=1, keepdims=True)
        all_different = self.config.objective is SequenceObjective.MRT
        counted_BxN = is_first_occurrence(drawn_BxNxT) if all_different else jnp.ones(rewards_BxN.shape, bool)
        added = {"drawn": drawn_BxNxT, "rewards": rewards_BxN, "counted": counted_BxN & real_Bx1}
        return {**batch, **added}, view.task_state

    def _words(self, tokens: Array) -> Array:
        """Return which tokens are part of a sentence, and not its end or padding."""
        words = tokens != self.special_tokens.fill_id
        for end_id in self.special_tokens.end_ids:
            words &= tokens != end_id
        return words

    def denominators(self, batch: Batch) -> dict[str, Array]:
        """Return the numbers of real target tokens and of sampled translations."""
        denominators = super().denominators(batch)
        if "drawn" in batch:
            denominators["drawn"] = jnp.sum(self._is_sample(batch)).astype(jnp.float32)
        return denominators

    def axis_labels(self, sites: Sequence[Site]) -> AxisLabels:
        """Return the tokens of the probe sentences; the target axis shows the predicted tokens."""
        encoded = encode_pairs(self.tokenizer, self._probed_pairs, self.config.sentence_frame)
        return pair_axis_labels(self.tokenizer, self._probed_pairs, sites, encoded)

    def predict(self, view: StateView, request: PredictionRequest) -> Predictions:
        """Translate the texts.

        Raises:
            UserError: If several samples are requested, the run was not trained on the language, or a sentence is too
                long.
        """
        if request.decoding.get("num_samples", 1) > 1:
            samples = request.decoding["num_samples"]
            raise UserError(f"--num_samples={samples} is for runs that continue texts: a translation is one")
        pairs = translate_request(self.config, view, self.tokenizer, request)
        return predictions_with_maps(
            view,
            [pair.target for pair in pairs],
            encode_pair_inputs(view, self.tokenizer, pairs, self.config.sentence_frame),
        )

    def loss(
        self, view: StateView, batch: Batch, denominators: Mapping[str, Array], key: Key[Array, ""]
    ) -> tuple[Array, LossAux]:
        """Compute the smoothed cross-entropy in nats per token, plus what is learned from rewards."""
        hidden_BxTxE, aux = view.model.apply(
            view.variables, self.model_inputs(batch), method="hidden", train=view.train, key=key, capture=view.capture
        )
        labels_BxT, counts_BxT = jnp.asarray(batch["labels"]), self.predicted_steps(batch)
        score = functools.partial(view.model.logits, view.variables)
        sums = chunked_token_loss(
            score,
            hidden_BxTxE,
            labels_BxT,
            counts_BxT,
            self.config.label_smoothing,
            num_tokens=self.interface.vocabularies["joint"],
            has_z_loss=self.config.z_loss > 0,
        )
        aux = add_z_loss(aux, sums, counts_BxT, self.config.z_loss)
        metrics = {
            "loss": sums.smoothed / denominators["tokens"],
            "cross_entropy": sums.cross_entropy / denominators["tokens"],
            "accuracy": sums.correct / denominators["tokens"],
        }
        if "drawn" in batch:
            worth, reward = self._expected_reward(view, batch, key)
            loss = (self.config.nll_weight * sums.smoothed - worth) / denominators["tokens"]
            return loss, LossAux.from_aux(
                aux, view.task_state, {**metrics, "sample_reward": reward / denominators["drawn"]}
            )
        num_tokens = denominators["tokens"]
        return add_reinforce_loss(
            self.config, view, aux, metrics, lambda: score(hidden_BxTxE), labels_BxT, counts_BxT, num_tokens
        )

    def _expected_reward(self, view: StateView, batch: Batch, key: Key[Array, ""]) -> tuple[Array, Array]:
        """Return the estimate of the sum of expected rewards, and the sum of the rewards of the model's samples."""
        drawn_BxNxT = jnp.asarray(batch["drawn"])
        batch_size, draws, length = drawn_BxNxT.shape
        labels_RxT = drawn_BxNxT.reshape(-1, length)
        begin_Rx1 = jnp.full((batch_size * draws, 1), self._train.encoded.bos_id, labels_RxT.dtype)
        inputs = {
            "source": jnp.repeat(jnp.asarray(batch["source"]), draws, axis=0),
            "target": jnp.concatenate([begin_Rx1, labels_RxT[:, :-1]], axis=1),
        }
        logits_RxTxV, _ = view.model.apply(view.variables, inputs, train=view.train, key=key)
        likelihood_RxT = token_log_likelihood(logits_RxTxV, labels_RxT)
        likelihood_R = jnp.sum(jnp.where(labels_RxT != self.special_tokens.fill_id, likelihood_RxT, 0), axis=1)
        config, rewards_BxN = self.config, jnp.asarray(batch["rewards"])
        worth_B = expected_reward_surrogate(
            config.objective,
            likelihood_R.reshape(batch_size, draws),
            rewards_BxN,
            jnp.asarray(batch["counted"]),
            config.mrt_alpha,
        )
        real_B = jnp.any(self.predicted_steps(batch), axis=1)
        return jnp.sum(jnp.where(real_B, worth_B, 0)), jnp.sum(jnp.where(self._is_sample(batch), rewards_BxN, 0))

    def _reward_sums(self, view: StateView, batch: Batch, key: Key[Array, ""]) -> tuple[dict[str, Array], None]:
        prepared, _ = self.prepare_batch(view, batch, key)
        own_BxN = self._is_sample(prepared)
        return {"sample_reward": jnp.sum(jnp.where(own_BxN, prepared["rewards"], 0)), "drawn": jnp.sum(own_BxN)}, None

    def _is_sample(self, batch: Batch) -> Array:
        """Return which of the sequences of each source the model sampled: all except a reference in front of them."""
        num_sequences = batch["drawn"].shape[1]
        is_model_sample_N = jnp.arange(num_sequences) >= num_sequences - self.config.num_samples
        return is_model_sample_N & jnp.any(self.predicted_steps(batch), axis=1, keepdims=True)


def _mean_reward(sums: Mapping[str, float], rows: object) -> EvaluationReport:
    return report_means(sums, by="drawn")


def make_task_interface(config: TranslationConfig, tokenizer: Tokenizer) -> TaskInterface:
    """Return what the task requires of a model: source and target in one vocabulary."""
    longest = max(config.bucket_lengths)
    pad_id, bos_id, eos_id = pad_begin_end_ids(tokenizer)
    side = InputSpec((max(config.tokens_per_batch // longest, 1), longest))
    return TaskInterface(
        inputs={"source": side, "target": side},
        vocabularies={"joint": tokenizer.vocab_size},
        pad_id=pad_id,
        bos_id=bos_id,
        eos_id=eos_id,
        output=TRANSLATION.output,
    )


def translate_request(
    config: TranslationConfig, view: StateView, tokenizer: Tokenizer, request: PredictionRequest
) -> list[SentencePair]:
    """Translate the texts of a request.

    Besides decoding options, a request may have the config's `replace_unknown` and `unknown_dictionary`.

    Args:
        config: The task's config, whose decoding options the request overrides.
        view: The state.
        tokenizer: The tokenizer.
        request: The request.

    Raises:
        UserError: If there is no text, a text is too long, a decoding option is invalid, or the run was not trained on
            the language.
    """
    max_length = view.model.max_length
    options = dict(request.decoding)
    if "replace_unknown" in options or "unknown_dictionary" in options:
        replacement = convert_value(
            UnknownReplacement, options.pop("replace_unknown", config.replace_unknown.value), "replace_unknown"
        )
        own = config.unknown_dictionary if replacement is UnknownReplacement.DICTIONARY else ""
        dictionary = options.pop("unknown_dictionary", own)
        config = dataclasses.replace(config, replace_unknown=replacement, unknown_dictionary=dictionary)
    replacer = make_unknown_word_replacer(config, tokenizer)
    settings: dict[str, Any] = {
        "max_new_tokens": max(config.bucket_lengths) if max_length is None else max_length,
        "num_beams": config.num_beams,
        "length_penalty": config.length_penalty,
        "coverage_penalty": config.coverage_penalty,
        **config.decoding.own_settings(),
    }
    if max_length is not None:
        settings["max_new_tokens"] = min(settings["max_new_tokens"], max_length)
    decoding = DecodingConfig.with_request(options, **settings)
    return translate(
        view,
        tokenizer,
        request.texts,
        decoding,
        language=request.language,
        max_length=max_length,
        replacer=replacer,
        frame=config.sentence_frame,
    )


def encode_inputs(
    config: TranslationConfig, view: StateView, tokenizer: Tokenizer, sentences: InputTexts
) -> EncodedInputs:
    """Encode texts with their targets, or without targets with the model's own translations.

    Args:
        config: The task's config.
        view: The state.
        tokenizer: The tokenizer.
        sentences: The texts.

    Raises:
        UserError: If a text is empty or too long, the numbers of texts and targets differ, or the run was not trained
            on the language.
    """
    texts, targets, language = sentences.texts, sentences.targets, sentences.language
    check_input_texts(sentences, two_sided=True)
    if targets is None:
        pairs = translate_request(config, view, tokenizer, PredictionRequest(texts, language))
    elif len(targets) != len(texts):
        raise UserError(f"{len(texts)} texts have {len(targets)} targets: give one of each")
    else:
        check_language(tokenizer, language)
        sides = zip(texts, targets, strict=True)
        pairs = [SentencePair(source.strip(), target.strip(), language or "") for source, target in sides]
        encoded = encode_pairs(tokenizer, pairs, config.sentence_frame)
        for sentences_of_side, tokens in ((texts, encoded.sources), (targets, encoded.targets)):
            check_text_length(sentences_of_side, tokens, view.model.max_length)
    return encode_pair_inputs(view, tokenizer, pairs, config.sentence_frame)


def build_task(config: TranslationConfig, directory: Path, rows_multiple: int = 1) -> Translation:
    """Build the task over its data.

    Args:
        config: The config.
        directory: The run directory, which keeps the tokenizer.
        rows_multiple: Devices that share the batch x microbatches; rows of a batch are padded to a multiple.
    """
    tokenizer, splits = load_encoded_splits(config, directory)
    return Translation(config, tokenizer, splits, rows_multiple)


def build_synthetic_task(config: TranslationConfig, rows_multiple: int = 1) -> Translation:
    """Build the task over synthetic pairs of the greatest length."""
    tokenizer, splits = synthetic_encoded_splits(config)
    return Translation(config, tokenizer, splits, rows_multiple)


def _translate_texts(
    config: TranslationConfig, view: StateView, tokenizer: Tokenizer, request: PredictionRequest
) -> Sequence[str]:
    """Return the best translation of each text of a request."""
    return [pair.target for pair in translate_request(config, view, tokenizer, request)]


READER = InputReader(make_task_interface, encode_inputs, generate=_translate_texts)
TASK = TaskSpec(TranslationConfig, build_synthetic_task, build_task, READER)
