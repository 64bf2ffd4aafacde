"""Model families, one per file, each with its config dataclass, and the interface that every family implements."""

from typing import TYPE_CHECKING

from transformer.system.lazy_names import lazy_names

if TYPE_CHECKING:
    from transformer.models.bidirectional_language_model import (
        BidirectionalLanguageModel,
        BidirectionalLanguageModelConfig,
    )
    from transformer.models.bytenet import ByteNet, ByteNetConfig
    from transformer.models.bytenet_decoder import ByteNetDecoder, ByteNetDecoderConfig
    from transformer.models.convolutional_classifier import ConvolutionalClassifier, ConvolutionalClassifierConfig
    from transformer.models.convs2s import ConvS2S, ConvS2SConfig
    from transformer.models.decoder import Decoder, DecoderConfig
    from transformer.models.encoder import Encoder, EncoderConfig
    from transformer.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
    from transformer.models.model import (
        Aux,
        AuxiliaryLoss,
        Cache,
        ForwardPass,
        Inputs,
        Model,
        StatelessModule,
        Variables,
        count_parameters,
        split_key,
    )
    from transformer.models.model_family import TOKEN_EMBEDDING_PATTERNS, ModelFamily, PublishedSize
    from transformer.models.recurrent_attention_decoder_base import (
        DecoderSteps,
        EncodedSource,
        RecurrentAttentionDecoder,
        StepInput,
        capture_all_steps,
        compute_context,
        reinforce_extras,
        sample_scheduled_sampling_mask,
        sample_soft_attention_examples,
    )
    from transformer.models.recurrent_classifier import RecurrentClassifier, RecurrentClassifierConfig
    from transformer.models.recurrent_decoder import RecurrentDecoder, RecurrentDecoderConfig
    from transformer.models.recurrent_encoder_decoder import RecurrentEncoderDecoder, RecurrentEncoderDecoderConfig
    from transformer.models.registry import build, model_config
    from transformer.models.regression_decoder import RegressionDecoder, RegressionDecoderConfig
    from transformer.models.snail import Snail, SnailConfig
    from transformer.models.task_interface import (
        LANGUAGE_MODELING,
        MASKED_LANGUAGE_MODELING,
        TRANSLATION,
        InputSpec,
        Modality,
        Signature,
        TaskInterface,
        check_max_length,
        signature,
    )
    from transformer.models.transformer_base import (
        BlockStacks,
        TokenModel,
        capture_for_stack,
        gates_for_stack,
        maps_of_stack,
        sites_of_stack,
    )
    from transformer.models.transformer_xl import TransformerXLConfig, TransformerXLDecoder
    from transformer.models.vit import Vit, VitConfig
    from transformer.models.xlnet import XLNet, XLNetConfig
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "LANGUAGE_MODELING",
    "MASKED_LANGUAGE_MODELING",
    "TOKEN_EMBEDDING_PATTERNS",
    "TRANSLATION",
    "Aux",
    "AuxiliaryLoss",
    "BidirectionalLanguageModel",
    "BidirectionalLanguageModelConfig",
    "BlockStacks",
    "ByteNet",
    "ByteNetConfig",
    "ByteNetDecoder",
    "ByteNetDecoderConfig",
    "Cache",
    "ConvS2S",
    "ConvS2SConfig",
    "ConvolutionalClassifier",
    "ConvolutionalClassifierConfig",
    "Decoder",
    "DecoderConfig",
    "DecoderSteps",
    "EncodedSource",
    "Encoder",
    "EncoderConfig",
    "EncoderDecoder",
    "EncoderDecoderConfig",
    "ForwardPass",
    "InputSpec",
    "Inputs",
    "Modality",
    "Model",
    "ModelFamily",
    "PublishedSize",
    "RecurrentAttentionDecoder",
    "RecurrentClassifier",
    "RecurrentClassifierConfig",
    "RecurrentDecoder",
    "RecurrentDecoderConfig",
    "RecurrentEncoderDecoder",
    "RecurrentEncoderDecoderConfig",
    "RegressionDecoder",
    "RegressionDecoderConfig",
    "Signature",
    "Snail",
    "SnailConfig",
    "StatelessModule",
    "StepInput",
    "TaskInterface",
    "TokenModel",
    "TransformerXLConfig",
    "TransformerXLDecoder",
    "Variables",
    "Vit",
    "VitConfig",
    "XLNet",
    "XLNetConfig",
    "build",
    "capture_all_steps",
    "capture_for_stack",
    "check_max_length",
    "compute_context",
    "count_parameters",
    "gates_for_stack",
    "maps_of_stack",
    "model_config",
    "reinforce_extras",
    "sample_scheduled_sampling_mask",
    "sample_soft_attention_examples",
    "signature",
    "sites_of_stack",
    "split_key",
]
