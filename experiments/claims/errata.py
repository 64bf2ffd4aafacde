"""What the five lectures say wrongly or loosely, what is right, and what of this repository shows it."""

from dataclasses import dataclass

_SIZES = "tests/models/test_sizes.py::test_a_size_has_exactly_the_published_models_parameters"
_TRAININGS = "tests/launch/test_model_sizes.py::test_published_trainings_cost_what_their_tables_print"
_LAYER_COSTS = "tests/layers/test_complexity.py::test_a_layer_of_a_thousand_by_a_thousand"
_MULTI_HEAD = "tests/layers/test_layers.py::test_multi_head_attention_is_the_oracles"
_HEAD_DIMS = "tests/models/test_sizes.py::test_heads_have_their_published_depth"
_OWN = "tests/experiments/claims/test_errata.py"


@dataclass(frozen=True, kw_only=True)
class Erratum:
    """One correction.

    Attributes:
        number: Its number, from 1.
        lectures: The lectures that it corrects, "S0" to "S4".
        statement: What is said there, in our words.
        correction: What is right.
        reason: Why, or where the difference comes from.
        source: The paper and section.
        shown_by: What holds the right fact: claims ("C-07"), tests ("tests/FILE.py::test_name") and pages
            ("docs/PAGE.md#anchor"). Empty if it is a fact of the source alone, such as a year.
    """

    number: int
    lectures: tuple[str, ...]
    statement: str
    correction: str
    reason: str
    source: str
    shown_by: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The erratum's name, such as "X7"."""
        return f"X{self.number}"


ERRATA = (
    Erratum(
        number=1,
        lectures=("S3",),
        statement="The first Transformer has 12 blocks and 6 heads of width 512.",
        correction="It has 6 encoder and 6 decoder layers, so 18 attention sub-layers. The width is 512, and each of "
        "8 heads has 64 features.",
        reason="6 is the number of layers of a stack, and 512 the width of the model. The same lecture's table has 8 "
        "heads.",
        source="Vaswani et al. 2017, sections 3.1 and 3.2",
        shown_by=("tests/models/test_encoder_decoder.py::test_parameters_of_base_and_big", _HEAD_DIMS),
    ),
    Erratum(
        number=2,
        lectures=("S3",),
        statement="The sizes are called Transformer-Base and Transformer-Large, with 12 layers.",
        correction="They are called base and big, and have 6 + 6 layers. The table's 65 and 213 million parameters, "
        "and 12 hours and 3.5 days on 8 P100s, are right.",
        reason="Encoder and decoder layers were added up.",
        source="Vaswani et al. 2017, table 3 and section 5.2",
        shown_by=(
            "tests/models/test_sizes.py::test_vaswanis_models_are_within_four_percent_and_say_why",
            _TRAININGS,
        ),
    ),
    Erratum(
        number=3,
        lectures=("S2",),
        statement="The context of an output is 1/N times the weighted sum of the N hidden states.",
        correction="The context is the weighted sum, without 1/N.",
        reason="Weights of a softmax sum to one already. With 1/N the context shrinks as sources get longer. Only the "
        "plain mean, whose weights are all 1, needs 1/N.",
        source="Bahdanau et al. 2015, equation 5",
        shown_by=(
            "tests/models/test_recurrent_encoder_decoder.py"
            "::test_the_lectures_context_is_smaller_by_the_length_of_the_source",
        ),
    ),
    Erratum(
        number=4,
        lectures=("S0",),
        statement="The maximum length of a sequence is O(1) with self-attention.",
        correction="The longest path between two positions is O(1). The length of a sequence is limited by memory "
        "alone.",
        reason="A word of the table's heading was exchanged.",
        source="Vaswani et al. 2017, table 1",
        shown_by=("C-10", "tests/layers/test_complexity.py::test_how_many_layers_join_the_two_ends"),
    ),
    Erratum(
        number=5,
        lectures=("S3",),
        statement="LayerNorm divides by the plain standard deviation, with two equal indices in the formula.",
        correction="A small constant is added to the variance under the root. Mean and variance run over the features "
        "of one vector, and the variance divides by their number.",
        reason="A constant vector has variance 0. (The paper prints no constant; every implementation has one.)",
        source="Ba et al. 2016, section 3",
        shown_by=("tests/layers/test_layers.py::test_layer_norm_is_the_equation",),
    ),
    Erratum(
        number=6,
        lectures=("S3",),
        statement="That it is good at long sequences is listed as a disadvantage of self-attention.",
        correction="It is an advantage: any two positions are one layer apart.",
        reason="A minus stands where a plus belongs. The disadvantage is the memory.",
        source="Vaswani et al. 2017, section 4",
        shown_by=("C-10", "C-13"),
    ),
    Erratum(
        number=7,
        lectures=("S0", "S1"),
        statement="Self-attention costs O(n² d).",
        correction="That is the cost of the products of queries, keys and values. A layer also projects its inputs "
        "and outputs, with 8 n d² operations.",
        reason="With n = d = 1,000 the four projections cost 8e9 operations, twice as many as the rest.",
        source="Vaswani et al. 2017, table 1 and section 3.2.2",
        shown_by=("C-07", _LAYER_COSTS, "tests/layers/test_complexity.py::test_attention_without_projections"),
    ),
    Erratum(
        number=8,
        lectures=("S1",),
        statement="The table of operations names a kernel width of 3 and gives 16e9 for a recurrent layer.",
        correction="The kernel width belongs to a convolution, whose row (6e9) is missing. 16e9 is the cost of an "
        "LSTM; a plain recurrent layer costs 4e9, as much as attention without its projections.",
        reason="An LSTM multiplies input and state by four matrices each.",
        source="Vaswani et al. 2017, table 1",
        shown_by=("C-08", _LAYER_COSTS),
    ),
    Erratum(
        number=9,
        lectures=("S1",),
        statement="Transformers train more than three times faster than all others.",
        correction="By operations, the base model needs 2.9 times fewer than ConvS2S, 6.1 times fewer than the "
        "mixture of experts and 7.0 times fewer than GNMT. The big model, whose BLEU is quoted, needs as many as GNMT "
        "for English-German, and 2.4 times more than ConvS2S.",
        reason="The speed of one model was put beside the quality of another.",
        source="Vaswani et al. 2017, table 2",
        shown_by=("C-23", _TRAININGS),
    ),
    Erratum(
        number=10,
        lectures=("S0", "S1", "S2"),
        statement="The big Transformer has 41.8 BLEU for English-French, without saying which BLEU and which version.",
        correction="41.8 is of the table in later versions of the preprint. The proceedings' abstract and the text of "
        "section 6.1 say 41.0. It is tokenized BLEU, which is higher than sacreBLEU.",
        reason="The paper was revised, and its text not everywhere.",
        source="Vaswani et al. 2017, abstracts of both versions, table 2 and section 6.1",
        shown_by=(_TRAININGS,),
    ),
    Erratum(
        number=11,
        lectures=("S1",),
        statement="24.6 and 39.9 BLEU are those of the original GNMT.",
        correction="They are those of one GNMT model refined by reinforcement learning (24.6 and 39.92).",
        reason="The row of the table is GNMT + RL.",
        source="Vaswani et al. 2017, table 2",
        shown_by=(_TRAININGS,),
    ),
    Erratum(
        number=12,
        lectures=("S2",),
        statement="An LSTM needs three times the matrix products of a plain recurrent network.",
        correction="It needs four times as many. Three times is the GRU.",
        reason="An LSTM has three gates and a candidate: four blocks.",
        source="Hochreiter and Schmidhuber 1997; Gers et al. 2000",
        shown_by=("C-26", _LAYER_COSTS),
    ),
    Erratum(
        number=13,
        lectures=("S2",),
        statement="Transformers have no vanishing or exploding gradients.",
        correction="The path over time is gone, the path through the layers stays. It needs residual connections, "
        "norms and, with the norm after the addition, a warm-up.",
        reason="Without warm-up such a model reached 8.45 BLEU on IWSLT14, and about 34 with it.",
        source="Xiong et al. 2020, sections 3 and 4",
        shown_by=("C-25", "C-31"),
    ),
    Erratum(
        number=14,
        lectures=("S2",),
        statement="The frequencies of the positional encoding are a harmonic series, and it never repeats.",
        correction="They are a geometric series, from wavelength 2 π to nearly 10,000 · 2 π. No two whole positions "
        "have one encoding, because the first frequency is 1 and π is irrational.",
        reason="Of a harmonic series the wavelengths would be whole fractions of the longest, and all would repeat "
        "together.",
        source="Vaswani et al. 2017, section 3.5",
        shown_by=(f"{_OWN}::test_frequencies_of_positions_are_geometric_and_no_position_comes_twice",),
    ),
    Erratum(
        number=15,
        lectures=("S2",),
        statement="The outputs of the heads are concatenated, and a block is attention and then an MLP.",
        correction="The concatenated outputs are multiplied by an output matrix. Each of the two sub-layers has a "
        "residual connection and a norm.",
        reason="The slides leave them out; two other lectures have them.",
        source="Vaswani et al. 2017, sections 3.1 and 3.2.2",
        shown_by=(_MULTI_HEAD, "tests/layers/test_layers.py::test_each_norm_placement_is_its_equation"),
    ),
    Erratum(
        number=16,
        lectures=("S1",),
        statement="The input is split into 8 heads.",
        correction="Every head projects the whole input vector by matrices of its own.",
        reason="What is split is the width of the projections: 8 heads of 64 features cost what one of 512 costs.",
        source="Vaswani et al. 2017, section 3.2.2",
        shown_by=(_MULTI_HEAD, "tests/models/test_encoder_decoder.py::test_heads_cost_nothing"),
    ),
    Erratum(
        number=17,
        lectures=("S0", "S1", "S2"),
        statement="The product of two projections, and the product with a matrix between, are two scores.",
        correction="They are one: with W = Aᵀ B, and of a rank up to the depth of A and B.",
        reason="⟨A q, B k⟩ = qᵀ Aᵀ B k.",
        source="Luong et al. 2015, section 3.1",
        shown_by=(
            "tests/attention/test_scores.py::test_general_with_a_factored_weight_is_the_product_of_two_projections",
        ),
    ),
    Erratum(
        number=18,
        lectures=("S3",),
        statement="Dot products are scaled since a vector of equal entries a has the length a √D.",
        correction="With independent entries of mean 0 and variance 1, a dot product has mean 0 and variance d, so it "
        "is divided by √d. (The lecture's note in Chinese says so.)",
        reason="Constant vectors show how lengths grow. What saturates the softmax is the spread of random products.",
        source="Vaswani et al. 2017, footnote 4",
        shown_by=("C-01", "C-02"),
    ),
    Erratum(
        number=19,
        lectures=("S3",),
        statement="Every weight is above 0 and below 1.",
        correction="A weight may be 1, of a source with one word, and is 0 where a mask hides the key.",
        reason="The softmax of one number is 1.",
        source="Bahdanau et al. 2015, equation 6",
        shown_by=(
            "tests/attention/test_normalizers.py::test_a_single_key_has_all_the_weight",
            "tests/attention/test_normalizers.py::test_masked_keys_and_rows_are_exactly_zero_in_value_and_gradient",
        ),
    ),
    Erratum(
        number=20,
        lectures=("S1", "S2"),
        statement="One lecture scores the decoder's state before the step, another the state after it, both as "
        "attention.",
        correction="They are two models. Bahdanau's previous state asks, and the context enters the next state. "
        "Luong's new state asks, and the context is joined with it into the output.",
        reason="The order of state and context differs.",
        source="Bahdanau et al. 2015, section 3.1; Luong et al. 2015, section 3",
        shown_by=(
            "tests/models/test_recurrent_encoder_decoder.py::test_logits_maps_and_steps_are_the_equations",
            "experiments/translation/README.md#attention-query-of-a-recurrent-decoder",
        ),
    ),
    Erratum(
        number=21,
        lectures=("S2",),
        statement="Show, Attend and Tell is of 2016.",
        correction="It is of 2015: a preprint of February, at ICML in July.",
        reason="A slip; another lecture has the year right.",
        source="Xu et al. 2015",
        shown_by=("experiments/captioning/README.md#captioning-show-attend-and-tell",),
    ),
    Erratum(
        number=22,
        lectures=("S3",),
        statement="Show, Attend and Tell produces a question.",
        correction="It produces a caption.",
        reason="A slip: questions are those of visual question answering.",
        source="Xu et al. 2015, section 3",
        shown_by=("experiments/captioning/README.md#model",),
    ),
    Erratum(
        number=23,
        lectures=("S3",),
        statement="Listen, Attend and Spell reads raw audio.",
        correction="It reads 40 log-mel filter banks every 10 ms.",
        reason="The features are computed before the encoder.",
        source="Chan et al. 2016, section 4",
        shown_by=("experiments/speech/README.md#models",),
    ),
    Erratum(
        number=24,
        lectures=("S4",),
        statement="Location-based attention depends on the position of the output.",
        correction="It depends on the decoder's state alone: softmax(W s).",
        reason="No position enters the equation; the state has to count.",
        source="Luong et al. 2015, equation 8",
        shown_by=("tests/attention/test_scores.py::test_location_depends_on_the_query_alone",),
    ),
    Erratum(
        number=25,
        lectures=("S4",),
        statement="Local attention predicts the position that it looks at.",
        correction="Only local-p does. Local-m looks at the position of the output step, with neither a prediction "
        "nor a Gaussian.",
        reason="There are two kinds.",
        source="Luong et al. 2015, section 3.2",
        shown_by=(
            "tests/attention/test_masks.py::test_local_monotonic_attention_is_zero_outside_its_window",
            "tests/attention/test_masks.py::test_the_gradient_reaches_the_prediction_through_the_gaussian_alone",
        ),
    ),
    Erratum(
        number=26,
        lectures=("S4",),
        statement="Hard attention computes less.",
        correction="It does when a model is used. Training needs an estimator of the gradient, such as REINFORCE, "
        "with several draws or a baseline.",
        reason="A draw has no gradient.",
        source="Xu et al. 2015, section 4.1; Luong et al. 2015, section 3.2",
        shown_by=(
            "C-33",
            "tests/attention/test_normalizers.py::test_straight_through_has_the_gradient_of_softmax_and_hard_has_none",
        ),
    ),
    Erratum(
        number=27,
        lectures=("S4",),
        statement="The memory of a Neural Turing Machine allows computations without limit.",
        correction="The memory has a fixed number of slots. Copying fails when the head comes around to its first "
        "slot.",
        reason="The shift of the head is a rotation: slot N is slot 0 again.",
        source="Graves et al. 2014, section 4.1",
        shown_by=(
            "C-35",
            "tests/experiments/neural_turing_machine/test_memory.py::test_a_shift_moves_around_the_ring",
            f"{_OWN}::test_a_memory_of_four_slots_forgets_the_first_of_five_vectors",
        ),
    ),
    Erratum(
        number=28,
        lectures=("S4",),
        statement="An encoder-decoder without attention forgets the first part of its source.",
        correction="It does on average. An LSTM that read its sources reversed was reported to have no trouble with "
        "long sentences.",
        reason="Reversed, the first words of source and translation are one step apart; the mean distance stays the "
        "same.",
        source="Sutskever et al. 2014, sections 3.3 and 3.7",
        shown_by=("C-14", f"{_OWN}::test_a_reversed_source_begins_near_its_translation_at_the_same_mean_distance"),
    ),
    Erratum(
        number=29,
        lectures=("S2",),
        statement="The row without the auxiliary loss of a language model stands for GPT.",
        correction="GPT is the row with the loss. The other leaves it out of fine-tuning, not of pre-training, and "
        "has the higher average: 75.0 against 74.7.",
        reason="With the loss QQP, MNLI, QNLI and RTE are higher, and the four other sets lower.",
        source="Radford et al. 2018, table 5",
        shown_by=(
            f"{_OWN}::test_gpts_averages_are_of_different_columns",
            "tests/tasks/test_fine_tuning.py::test_the_auxiliary_gradient_is_lambda_times_the_language_models",
        ),
    ),
    Erratum(
        number=30,
        lectures=("S2",),
        statement="Two tables give GPT different scores: QNLI 88.1 and 87.4, STS-B 82.0 and 80.0, average 74.7 and "
        "75.1.",
        correction="Both are right. STS-B is a Pearson correlation in one and a Spearman correlation in the other, "
        "QNLI was released anew, and one average counts MNLI once, the other twice.",
        reason="Captions tell what a column is.",
        source="Radford et al. 2018, table 5; Devlin et al. 2019, table 1",
        shown_by=(
            f"{_OWN}::test_gpts_averages_are_of_different_columns",
            f"{_OWN}::test_pearson_and_spearman_of_one_answer_differ",
        ),
    ),
    Erratum(
        number=31,
        lectures=("S0",),
        statement="GPT-2 is 10 times larger than GPT.",
        correction="It is 13.4 times larger: 1,557.6 and 116.5 million parameters.",
        reason="The printed sizes are rounded.",
        source="Radford et al. 2019, table 2",
        shown_by=(_SIZES, f"{_OWN}::test_ratios_of_gpts_sizes"),
    ),
    Erratum(
        number=32,
        lectures=("S2",),
        statement="A thousand times the parameters make GPT-3.",
        correction="GPT-3 has 1,498 times as many as GPT and 112 times as many as GPT-2: 174.6 billion.",
        reason="It depends on which model is multiplied.",
        source="Brown et al. 2020, table 2.1",
        shown_by=(_SIZES, f"{_OWN}::test_ratios_of_gpts_sizes"),
    ),
    Erratum(
        number=33,
        lectures=("S3",),
        statement="Megatron-LM of 8.3 billion parameters has 32 heads.",
        correction="The model that was trained has 24. A study of scaling in the same paper has 32.",
        reason="Two tables of the paper differ. The number of parameters does not depend on the heads.",
        source="Shoeybi et al. 2019, tables 1 and 2",
        shown_by=(_SIZES, f"{_OWN}::test_what_a_published_size_fixes"),
    ),
    Erratum(
        number=34,
        lectures=("S3",),
        statement="XLNet-Large has about 340 million parameters, and was trained on 126 GB for 2.5 days.",
        correction="It has 360.3 million. 126 GB and 2.5 days are of the preprint's first version. The last has 158 "
        "GB and 5.5 days.",
        reason="The paper was revised. 340 million is BERT's, and XLNet's relative positions have a matrix a layer "
        "more.",
        source="Yang et al. 2019, section 3.1, both versions",
        shown_by=(_SIZES,),
    ),
    Erratum(
        number=35,
        lectures=("S3",),
        statement="RoBERTa was trained on 1,024 V100s for one day.",
        correction="One day is the run of 100,000 steps. The released model was trained for 500,000, about five days.",
        reason="2 trillion tokens, by which its cost is counted, are 500,000 batches of 8,000 sequences.",
        source="Liu et al. 2019, section 5; Brown et al. 2020, table D.1",
        shown_by=(f"{_OWN}::test_robertas_tokens_are_those_of_half_a_million_steps",),
    ),
    Erratum(
        number=36,
        lectures=("S3",),
        statement="BERT-Large has 340 million parameters, and was trained on 13 GB.",
        correction="It has 335.1 million with its pooler, and 336.2 million with the heads of pre-training. 13 GB is "
        "another paper's figure; RoBERTa's says 16 GB.",
        reason="The printed sizes are rounded, and BERT's paper gives words, not bytes.",
        source="Devlin et al. 2019, section 3; Yang et al. 2019; Liu et al. 2019",
        shown_by=(_SIZES,),
    ),
    Erratum(
        number=37,
        lectures=("S3",),
        statement="The heads of GPT-2 are unknown, and it has 1.5 billion parameters.",
        correction="The largest has 25 heads of 64 features and 1,557,611,200 parameters. (The paper prints 1,542 "
        "million.)",
        reason="The released weights have what is counted; the paper's own sizes are off for all four.",
        source="Radford et al. 2019, table 2, and the released weights",
        shown_by=(_SIZES, _HEAD_DIMS),
    ),
    Erratum(
        number=38,
        lectures=("S3",),
        statement="GPT-3 was trained on 694 GB.",
        correction="The paper has no such figure. It names 570 GB of filtered Common Crawl, a mix of 499 billion "
        "tokens, and 300 billion tokens seen in training.",
        reason="We have found no source of 694 GB.",
        source="Brown et al. 2020, section 2.2 and table 2.2",
        shown_by=(f"{_OWN}::test_gpt3_saw_less_than_its_mix_holds",),
    ),
    Erratum(
        number=39,
        lectures=("S3",),
        statement="Gopher was trained on 10.55 TB.",
        correction="That is the size of its corpus. It was trained on 300 billion tokens, about an eighth of it.",
        reason="A corpus is not read to its end.",
        source="Rae et al. 2021, section 3.2 and table A27",
        shown_by=("C-48", _TRAININGS),
    ),
    Erratum(
        number=40,
        lectures=("S3",),
        statement="Turing-NLG has 17 billion parameters, with a question mark.",
        correction="78 layers of width 4,256 with 28 heads make 17.18 billion, with GPT-2's arrangement and "
        "vocabulary.",
        reason="12 squares of the width a layer, plus the embeddings.",
        source="Rosset 2020",
        shown_by=(_SIZES,),
    ),
    Erratum(
        number=41,
        lectures=("S2",),
        statement="For images it is enough to apply self-attention to patches.",
        correction="It also takes much pre-training or strong augmentation to match a convolutional network.",
        reason="Convolutions know that neighboring pixels belong together. Trained from scratch on small data, a "
        "Vision Transformer stays behind.",
        source="Dosovitskiy et al. 2021, section 4.3",
        shown_by=("experiments/image_classification/README.md#cifar-10",),
    ),
    Erratum(
        number=42,
        lectures=("S2",),
        statement="In the formula of the softmax the sum runs over the index that names the output, and a key has two "
        "indices.",
        correction="The sum runs over the positions of the source, an index of its own.",
        reason="Otherwise numerator and denominator share an index, and weights need not sum to one.",
        source="Bahdanau et al. 2015, equation 6",
        shown_by=("C-19", "tests/attention/test_properties.py::test_rows_sum_to_one_and_do_not_feel_a_constant"),
    ),
    Erratum(
        number=43,
        lectures=("S0", "S3"),
        statement="GPT-1, 2 and 3 are one decoder.",
        correction="GPT-1 has its norms behind the addition. GPT-2 and 3 have them before the sub-layers, and one at "
        "the end. None has the cross-attention of a Transformer's decoder.",
        reason="The arrangement changed with GPT-2.",
        source="Radford et al. 2018, section 4.1; Radford et al. 2019, section 2.3",
        shown_by=(f"{_OWN}::test_what_a_published_size_fixes",),
    ),
    Erratum(
        number=44,
        lectures=("S2",),
        statement="BERT gives embeddings of words and of sentences.",
        correction="The state of its first token is no good embedding of a sentence before it is fine-tuned for that.",
        reason="It was trained to say whether two texts follow each other. Unchanged, it ranks similar sentences "
        "worse than the mean of word vectors.",
        source="Devlin et al. 2019, section 3.1; Reimers and Gurevych 2019, table 1",
    ),
)
