"""Every arrangement with the weights of an independent implementation gives its logits, states, maps and choices."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.golden.recordings import CASES, Recording, model_of, recording
from transformer.attention.capture import Capture
from transformer.decoding.generation import SpecialTokens, generate
from transformer.decoding.greedy import GreedySearch
from transformer.models.model import PyTree, Variables

RENEW = (
    "{what} recorded from {architecture} is not reached. The weights are its own, so a change of the model's equations "
    "is a fault here. Renew tests/golden/families with tests/golden/make_families.py only to record other sizes, "
    "inputs or versions; where only names or layouts of parameters changed, change the tables of "
    "transformer/huggingface"
)
# Every program runs once: what it takes to compile counts.
FAST = {"xla_backend_optimization_level": 0}
MAPS = {
    "decoder": {"attention": "decoder/self"},
    "encoder": {"attention": "encoder/self"},
    "encoder_decoder": {
        "encoder_attention": "encoder/self",
        "decoder_attention": "decoder/self",
        "cross_attention": "decoder/cross",
    },
}


def inputs_of(recorded: Recording) -> dict[str, jax.Array]:
    names = {"ids": "tokens", "lengths": "lengths", "types": "types"}
    if recorded.about["kind"] == "encoder_decoder":
        names = {"ids": "source", "target": "target"}
    return {ours: jnp.asarray(recorded.arrays[theirs]) for theirs, ours in names.items() if theirs in recorded.arrays}


def compare(recorded: Recording, what: str, found: Any, tolerance: float) -> None:
    expected = recorded.arrays[what]
    lengths = recorded.arrays["target_lengths" if expected.shape[-2] != recorded.arrays["ids"].shape[1] else "lengths"]
    real = np.arange(expected.shape[-2]) < lengths[:, None]
    if what.endswith("attention"):
        real = real[None, :, None]
    assert np.abs(expected).max() > tolerance * 100
    message = RENEW.format(what=what, architecture=recorded.about["architecture"])
    np.testing.assert_allclose(np.where(real[..., None], found, 0), expected, rtol=0, atol=tolerance, err_msg=message)


# One option of a family that stands beside it, and families whose choices others have: `make slow` takes these.
OPTIONS = (
    "albert_groups",
    "bart_three_heads",
    "bert_gelu_new",
    "bert_pretraining",
    "blenderbot",
    "camembert",
    "cohere2_bias",
    "cohere_bias",
    "deberta_absolute",
    "deberta_distances",
    "distilbert_relu",
    "electra_one_type",
    "electra_small",
    "falcon_groups",
    "falcon_heads",
    "falcon_one_norm",
    "gemma",
    "gpt2_gelu",
    "gpt_bigcode_heads",
    "gpt_neox_pre",
    "gpt_oss_full",
    "gptj_part",
    "llama_linear",
    "llama_tied",
    "m2m_100_padding",
    "marian_relu",
    "mbart",
    "ministral",
    "modernbert_options",
    "mixtral_window",
    "mpt_six_heads",
    "mt5",
    "mt5_tied",
    "olmo2",
    "olmoe",
    "olmoe_norm",
    "opt_post",
    "pegasus",
    "phi",
    "phi3",
    "qwen2_window",
    "qwen2_moe_window",
    "qwen3",
    "qwen3_moe",
    "qwen3_moe_window",
    "stablelm_parallel",
    "starcoder2_window",
    "t5_gated",
    "torch_encoder_pre",
    "xglm_plain",
    "xlm_roberta",
)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in OPTIONS else []) for name in CASES]
)
def test_logits_states_and_maps_are_those_recorded(name: str, tmp_path: Path) -> None:
    recorded = recording(name)
    model, params = model_of(name, recorded, tmp_path)
    kind, inputs = recorded.about["kind"], inputs_of(recorded)
    capture = Capture(tuple(site.name for site in model.sites))

    @functools.partial(jax.jit, compiler_options=FAST)
    def run(params: PyTree) -> Mapping[str, Any]:
        variables = Variables(params, {})
        hidden, aux = model.apply(variables, inputs, method="hidden", train=False, capture=capture)
        found = {"hidden": hidden, "maps": {site: maps.weights for site, maps in aux.maps.items()}, **aux.extras}
        if kind == "encoder_decoder":
            found["memory"] = model.functional.bind(params).encode(inputs, None, None)[0]
        if kind == "encoder" and "head" not in params:
            return found | {"logits": hidden @ params["embedding"]["table"].T}
        return found | {"logits": model.logits(variables, hidden)}

    with jax.default_matmul_precision("highest"):
        found = jax.device_get(run(params))
    compare(recorded, "logits", found["logits"], 1e-4)
    for what, site in MAPS[kind].items():
        compare(recorded, what, found["maps"][site], 1e-5)
    states = {"encoder_hidden": "memory", "decoder_hidden": "hidden", "hidden": "hidden"}
    for what in states.keys() & recorded.arrays.keys():
        last = recorded._replace(arrays={**recorded.arrays, what: recorded.arrays[what][-1]})
        compare(last, what, found[states[what]], 1e-4)
    for extra in {"pooled", "next_sentence"} & recorded.arrays.keys():
        message = RENEW.format(what=extra, architecture=recorded.about["architecture"])
        np.testing.assert_allclose(found[extra], recorded.arrays[extra], rtol=0, atol=1e-4, err_msg=message)


@pytest.mark.parametrize("name", ["mixtral"])
def test_losses_before_and_after_a_step_are_those_recorded(name: str, tmp_path: Path) -> None:
    recorded = recording(name)
    model, params = model_of(name, recorded, tmp_path)
    inputs, lengths = inputs_of(recorded), recorded.arrays["lengths"]
    expected, balance, after = recorded.arrays["losses"]
    is_target = jnp.asarray(np.arange(1, lengths.max()) < lengths[:, None])

    def loss(params: PyTree) -> tuple[jax.Array, jax.Array]:
        variables = Variables(params, {})
        hidden, aux = model.apply(variables, inputs, method="hidden", train=True, key=jax.random.key(0))
        logits = jax.nn.log_softmax(model.logits(variables, hidden)[:, :-1])
        targets = jnp.take_along_axis(logits, inputs["tokens"][:, 1:, None], axis=-1)[..., 0]
        term = aux.losses["decoder/balance"]
        unevenness = term.total / term.denominator
        return -jnp.sum(targets * is_target) / jnp.sum(is_target) + term.weight * unevenness, unevenness

    @functools.partial(jax.jit, compiler_options=FAST)
    def run(params: PyTree) -> Any:
        (before, unevenness), gradient = jax.value_and_grad(loss, has_aux=True)(params)
        return before, unevenness, loss(jax.tree.map(lambda leaf, slope: leaf - 0.05 * slope, params, gradient))[0]

    with jax.default_matmul_precision("highest"):
        found = run(params)
    assert after < expected - 0.05
    assert balance > 2.01
    np.testing.assert_allclose(found, [expected, balance, after], rtol=0, atol=1e-5)


QUICK = ("mistral", "t5")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
        for name in CASES
        if "generated" in recording(name).arrays
    ],
)
def test_greedy_decoding_takes_the_tokens_recorded(name: str, tmp_path: Path) -> None:
    recorded = recording(name)
    model, params = model_of(name, recorded, tmp_path)
    expected, config = recorded.arrays["generated"], recorded.config
    if recorded.about["kind"] == "encoder_decoder":
        inputs = {"source": jnp.asarray(recorded.arrays["ids"])}
        tokens = SpecialTokens(config["pad_token_id"], config["decoder_start_token_id"], config["eos_token_id"])
    else:
        names = {"prompts": "tokens", "prompt_lengths": "lengths"}
        inputs = {ours: jnp.asarray(recorded.arrays[theirs]) for theirs, ours in names.items()}
        tokens = SpecialTokens()
    with jax.default_matmul_precision("highest"):
        decode = jax.jit(generate, static_argnames=("model", "strategy", "length", "tokens"), compiler_options=FAST)
        rollout = decode(
            model, Variables(params, {}), inputs, strategy=GreedySearch(), length=expected.shape[1], tokens=tokens
        )
    message = RENEW.format(what="generated", architecture=recorded.about["architecture"])
    np.testing.assert_array_equal(rollout.tokens[:, 0], expected, err_msg=message)
