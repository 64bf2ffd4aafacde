"""Tasks: what a problem is - data, objectives, evaluations, probe."""

from typing import TYPE_CHECKING

from transformer.system.lazy_names import lazy_names

if TYPE_CHECKING:
    from transformer.models.task_interface import InputSpec, TaskInterface
    from transformer.tasks.attention_mass import (
        attention_mass_sums,
        attention_mass_within,
        capture_weights,
        cell_of_patch,
        head_with_most_mass,
        patch_centers,
    )
    from transformer.tasks.axis_labels import AxisLabels, GoldAlignment
    from transformer.tasks.base_task import (
        BaseTask,
        check_batch_size,
        check_input_texts,
        check_text_length,
        describe_splits,
        describe_top_classes,
        make_capture_function,
        real_rows,
        refuse_decoding_options,
        refuse_text_options,
        report_means,
    )
    from transformer.tasks.decoding_config import DecodingConfig
    from transformer.tasks.generated_task import GeneratedTask
    from transformer.tasks.losses import TokenLoss, class_loss, token_loss
    from transformer.tasks.masked_lm import mask_tokens
    from transformer.tasks.sequence_generation_base import (
        ImageToSequenceTask,
        SymbolSequenceTask,
        TokenSequenceTask,
        gold_alignments_from_mask,
        keep_correct_gold_alignments,
        predicted_step_mask,
        teacher_forcing_arrays,
        trim_at_end_token,
    )
    from transformer.tasks.task import (
        EncodedInputs,
        Evaluation,
        EvaluationReport,
        EvaluationStep,
        InputReader,
        InputTexts,
        LossAux,
        Objective,
        PredictionRequest,
        Predictions,
        StateView,
        Task,
        TaskSpec,
    )
    from transformer.tasks.text_data import TokenizerKind, load_or_train_tokenizer, pad_texts, token_axis_labels
    from transformer.tasks.text_generation import encode_prompts, generate_continuations, predict_continuations
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "AxisLabels",
    "BaseTask",
    "DecodingConfig",
    "EncodedInputs",
    "Evaluation",
    "EvaluationReport",
    "EvaluationStep",
    "GeneratedTask",
    "GoldAlignment",
    "ImageToSequenceTask",
    "InputReader",
    "InputSpec",
    "InputTexts",
    "LossAux",
    "Objective",
    "PredictionRequest",
    "Predictions",
    "StateView",
    "SymbolSequenceTask",
    "Task",
    "TaskInterface",
    "TaskSpec",
    "TokenLoss",
    "TokenSequenceTask",
    "TokenizerKind",
    "attention_mass_sums",
    "attention_mass_within",
    "capture_weights",
    "cell_of_patch",
    "check_batch_size",
    "check_input_texts",
    "check_text_length",
    "class_loss",
    "describe_splits",
    "describe_top_classes",
    "encode_prompts",
    "generate_continuations",
    "gold_alignments_from_mask",
    "head_with_most_mass",
    "keep_correct_gold_alignments",
    "load_or_train_tokenizer",
    "make_capture_function",
    "mask_tokens",
    "pad_texts",
    "patch_centers",
    "predict_continuations",
    "predicted_step_mask",
    "real_rows",
    "refuse_decoding_options",
    "refuse_text_options",
    "report_means",
    "teacher_forcing_arrays",
    "token_axis_labels",
    "token_loss",
    "trim_at_end_token",
]
