"""The projects' families and tasks (`experiments/`)."""

import numpy as np

from tests.contracts.case import Case, falls
from tests.contracts.library_cases import SMALL
from transformer.models.model import leaves_by_path
from transformer.training.state import TrainState

ALGORITHMS = {
    "name": "experiments.neural_turing_machine.task",
    "num_bits": 2,
    "max_size": 3,
    "bucket_lengths": (8,),
    "eval_sizes": (2, 4),
    "num_eval_examples": 8,
}

QUESTIONS = {
    "name": "experiments.visual_question_answering.task",
    "dataset": "scenes/cell_pixels=8,validation=16,test=16",
}
PLACES = {"channels": (8, 8), "strides": (2, 2)}

# Two items have ten steps: two devices can share them.
CAPTIONS = {"name": "experiments.captioning.task", "min_items": 1, "max_items": 2, "cell_pixels": 4}
CAPTIONER = {
    "family": "experiments.captioning.model",
    "image_encoder": {"channels": (8,), "strides": (2,)},
    "width": 8,
    "embedding_width": 8,
    "doubly_stochastic_weight": 0.01,
}

# One digit by its number and the end are two steps: two devices can share them.
SPOKEN_DIGITS = {
    "name": "experiments.speech.task",
    "dataset": "synthetic/num_speakers=1,num_takes=3",
    "min_digits": 1,
    "max_digits": 1,
    "max_seconds": 0.96,
    "output_units": "digits",
}
LISTENER = {
    "family": "experiments.speech.listen_attend_spell",
    # Eight bands every 40 ms, two of which become one.
    "audio_frontend": {"num_mel_bins": 8, "window_length": 320, "hop_length": 320},
    "listener_width": 8,
    "pyramid": (2,),
    "speller_width": 8,
    "speller_layers": 1,
    "embedding_width": 8,
    "attention_width": 8,
    "scheduled_sampling": 0.0,
    "vocab_size": 16,
}

# Ten words at most: two devices can share them.
MARKED_TEXTS = {
    "name": "experiments.attention_probes.task",
    "dataset": "two_offset_copy/num_kinds=2,far_offset=2,num_questions=2",
}


def the_replay_has_wrapped_and_the_target_lags(state: TrainState) -> None:
    assert int(state.task_state.written) == 40 * 8
    assert (np.asarray(state.task_state.episodes.lengths) > 0).all()
    values = {path: np.asarray(leaf) for path, leaf in leaves_by_path(state.variables.params).items()}
    behind = [np.abs(np.asarray(leaf) - values[path]).max() for path, leaf in state.averages["target"].items()]
    assert len(behind) == len(values)
    assert 0 < min(behind) <= max(behind) < 0.1


PROJECTS = (
    Case(
        "algorithms x turing",
        ALGORITHMS,
        {
            "family": "experiments.neural_turing_machine.ntm",
            "width": 8,
            "write_heads": 2,
            "num_slots": 6,
            "slot_width": 4,
        },
        steps=60,
        learning_rate=0.03,
    ),
    Case(
        "algorithms x controller_only",
        ALGORITHMS,
        {"family": "experiments.neural_turing_machine.lstm_controller", "width": 16, "layers": 2},
        steps=60,
        learning_rate=0.03,
    ),
    Case(
        "summarization x pointer_generator",
        # One fact and two sentences have 32 words, and a summary ten: two devices can share both.
        {"name": "experiments.summarization.task", "max_facts": 1, "num_known_names": 20, "eval_sizes": (1,)},
        {"family": "experiments.summarization.model", "width": 8, "embedding_width": 8, "coverage_loss_weight": 1.0},
    ),
    Case(
        "linear_regression x regression_decoder",
        # Three dimensions have fourteen steps: two devices can share them.
        {
            "name": "experiments.in_context_learning.linear_regression_task",
            "num_dimensions": 3,
            "min_dimensions": 1,
        },
        {"family": "regression_decoder", **SMALL, "max_length": 14},
        metric=falls(to=1),
    ),
    Case(
        "in_context_learning x decoder",
        # Two pairs of twelve characters: two devices can share them.
        {
            "name": "experiments.in_context_learning.task",
            "problem": "string_edits",
            "alphabet_size": 8,
            "max_word_length": 4,
            "shots": (0, 1),
        },
        {"family": "decoder", **SMALL, "max_length": 24, "vocab_size": 32},
    ),
    Case(
        "news_articles x decoder",
        {"name": "experiments.news_articles.task"},
        {"family": "decoder", **SMALL, "max_length": 56, "vocab_size": 320},
    ),
    Case(
        "few_shot x snail",
        # Three ways and one shot have four steps: two devices can share them.
        {
            "name": "experiments.few_shot.task",
            "dataset": "strokes/train=6,validation=3,test=3,num_drawers=3",
            "image_size": 8,
            "ways": 3,
        },
        {
            "family": "snail",
            "embedding_width": 8,
            "channels": (4, 8),
            "key_sizes": (4, 4, 4),
            "value_sizes": (4, 4, 4),
            "filters": (4, 4),
        },
        steps=60,
        metric=falls(to=1),
        sampled="every microbatch has its own statistics: those of the large batch are not their mean",
    ),
    Case(
        "meta_rl x snail",
        {"name": "experiments.meta_rl.task", "num_actions": 2, "num_episodes": 4},
        {
            "family": "snail",
            "embedding_width": 4,
            "blocks": ("convolutions", "attention"),
            "key_sizes": (4,),
            "value_sizes": (4,),
            "filters": (4,),
        },
        learning_rate=0.03,
        metric=falls(to=0.95),
    ),
    Case(
        "point_clouds x set_transformer",
        {"name": "experiments.point_clouds.task", "min_points": 12, "max_points": 24},
        {"family": "experiments.point_clouds.model", **SMALL},
        steps=120,
    ),
    Case(
        "kernel_regression x kernel_regression",
        # An odd number, since distances cannot go around a ring, which the table of meshes asks for.
        {"name": "experiments.kernel_regression.task", "num_points": 9, "num_features": 2, "num_queries": 4},
        {"family": "experiments.kernel_regression.model", "learned_bandwidth": "per_feature"},
        steps=20,
        learning_rate=0.1,
    ),
    Case(
        "graph_distances x graph_transformer",
        {"name": "experiments.graphs.task", "num_nodes": 8, "max_distance": 2},
        # The default's vectors of edges cannot go around a ring, which the table of meshes asks for.
        {
            "family": "experiments.graphs.model",
            "edges": "bias",
            "layers": 1,
            "width": 8,
            "heads": 2,
            "feed_forward": 8,
        },
        learning_rate=0.02,
        rounding=3e-6,
    ),
    Case(
        "geometry x pointer",
        # Triangles of at most four points have ten steps: two devices can share both.
        {
            "name": "experiments.pointer_networks.task",
            "problem": "delaunay",
            "min_points": 3,
            "max_points": 4,
            "eval_sizes": (3,),
        },
        {
            "family": "experiments.pointer_networks.model",
            "encoder": {"width": 8, "direction": "bidirectional"},
            "decoder_input": "encoded",
        },
        metric=falls(to=0.8),
    ),
    Case(
        "visual_question_answering x smem_vqa",
        QUESTIONS,
        {
            "family": "experiments.visual_question_answering.smem_vqa",
            "width": 16,
            "image_encoder": PLACES,
            "vocab_size": 32,
        },
    ),
    Case(
        "visual_question_answering x stacked_attention_vqa",
        QUESTIONS,
        {
            "family": "experiments.visual_question_answering.stacked_attention_vqa",
            "embedding_width": 8,
            "question_encoder": {"width": 8},
            "hidden": 16,
            "image_encoder": PLACES,
            "vocab_size": 32,
        },
    ),
    Case("captions x captioner", CAPTIONS, CAPTIONER, learning_rate=0.02),
    Case(
        "captions x captioner that draws",
        CAPTIONS,
        CAPTIONER | {"attention": "hard", "doubly_stochastic_weight": 0.0, "soft_attention_probability": 0.5},
        learning_rate=0.02,
        sampled="every microbatch draws its own places: equal in expectation alone",
        # Rounding alone makes 1.3e-6 of the gradient's norm in the third step of vectorized lanes.
        rounding=3e-6,
        daily=(),
    ),
    Case(
        "handshake_rl x recurrent_q_network",
        {
            "name": "experiments.handshake_rl.task",
            "max_episode_steps": 4,
            "episodes_per_step": 8,
            "replay_batch_size": 16,
            "replay_capacity": 24,
            "exploration_steps": 20,
            "num_eval_examples": 8,
            "num_probe_examples": 2,
        },
        {
            "family": "experiments.handshake_rl.model",
            "image_encoder": {"channels": (4,), "strides": (3,)},
            "width": 8,
        },
        metric=falls(to=0.5),
        averages={"target": {"kind": "exponential", "decay": 0.8}},
        holds=the_replay_has_wrapped_and_the_target_lags,
    ),
    Case(
        "scene_text x show_attend_read",
        # Strings of at most three glyphs have four steps: two devices can share them.
        {
            "name": "experiments.scene_text.task",
            "min_length": 1,
            "max_length": 3,
            "image_size": 24,
            "alphabet": "AEJKT",
        },
        {
            "family": "experiments.scene_text.model",
            "image_encoder": {"channels": (8,), "strides": (4,)},
            "width": 8,
            "layers": 1,
        },
        learning_rate=0.02,
    ),
    Case(
        "paired_digits x sagan",
        {"name": "experiments.sagan.task", "digits": "17", "image_height": 8, "noise_size": 4},
        {"family": "experiments.sagan.model", "channels": (4, 8), "attention_grids": (4,), "reduction": 1},
        metric=falls("discriminator/loss", to=0.95),
        averages={"smooth": {"kind": "exponential", "decay": 0.9, "patterns": ("generator/*",)}},
        rates={"generator": 0.25},
        # Each player answers the other's rounding.
        rounding=3e-5,
        sampled="every microbatch has its own statistics: those of the large batch are not their mean",
        keeps_tree=True,
    ),
    Case("spoken_digits x listen_attend_spell", SPOKEN_DIGITS, LISTENER, learning_rate=0.02),
    Case(
        "spoken_digits x listen_attend_spell that reads its own",
        SPOKEN_DIGITS,
        LISTENER
        | {
            "scheduled_sampling": 0.3,
            "audio_frontend": {"spec_augment": {"num_time_masks": 1, "max_time_mask_width": 5}},
        },
        learning_rate=0.02,
        sampled="every microbatch draws its own characters and masks: equal in expectation alone",
        daily=(),
    ),
    Case(
        "spoken_digits x speech_transformer",
        SPOKEN_DIGITS,
        {
            "family": "experiments.speech.speech_transformer",
            "encoder_layers": 1,
            "decoder_layers": 1,
            "width": 16,
            "heads": 2,
            "feed_forward": 32,
            "dropout": 0.0,
            "channels": 8,
            "max_length": 32,
            "vocab_size": 16,
            "audio_frontend": {"num_mel_bins": 8, "hop_length": 160},
        },
    ),
    Case(
        "instruction_following x listen_attend_walk",
        # Ten words and eight steps: two devices can share them.
        {
            "name": "experiments.instruction_following.task",
            "num_mazes": 4,
            "num_held_out_mazes": 2,
            "maze_size": 3,
            "max_clauses": 1,
            "max_actions": 7,
        },
        {"family": "experiments.instruction_following.model", "width": 8, "embedding_width": 8, "vocab_size": 64},
        learning_rate=0.03,
        metric=falls(to=0.7),
    ),
    Case(
        "attention_probes x decoder",
        MARKED_TEXTS,
        {"family": "decoder", "vocab_size": 8, **SMALL, "max_length": 10},
    ),
    Case(
        "attention_probes x bytenet_decoder",
        MARKED_TEXTS,
        {"family": "bytenet_decoder", "vocab_size": 8, "width": 16, "sets": 1, "max_dilation": 2},
        # As of bytenet: each norm blows rounding up.
        rounding=1e-5,
    ),
    Case(
        "text_retrieval x dual_encoder",
        {
            "name": "experiments.text_retrieval.task",
            "dataset": "number_words/train=64,validation=16,test=16",
            "vocab_size": 160,
            "max_tokens": 32,
            "pool_size": 16,
        },
        {"family": "experiments.text_retrieval.model", "vocab_size": 160, **SMALL, "max_length": 32},
        steps=24,
        sampled="every microbatch would have negatives of its own alone: it is refused",
    ),
)
