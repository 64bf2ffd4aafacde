"""C-43: not all Transformers are the same."""

from collections.abc import Mapping
from typing import Any

from experiments.claims.claim import Claim, Figures, Finding, Measurement, Verdict
from experiments.claims.exhibits import HeatMap, Table

LENGTH, TOKENS = 6, 20
SIZES = {"width": 32, "heads": 2, "feed_forward": 64}
KINDS = {
    "encoder": ("BERT", "masked tokens, from both sides"),
    "decoder": ("GPT", "the next token, from the left"),
    "encoder-decoder, source": ("T5", "a target, from all of a source"),
    "encoder-decoder, target": ("T5", "and from the left of the target"),
}


def measure() -> Figures:
    """Replace each input token in turn, and look which outputs of three untrained models change."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from transformer.layers.functional_module import Precision
    from transformer.models.registry import build, model_config
    from transformer.models.task_interface import InputSpec, TaskInterface

    tokens_T = 5 + np.arange(LENGTH)
    replaced_TxT = np.where(np.eye(LENGTH, dtype=bool), TOKENS - 1, tokens_T)
    same_TxT = np.broadcast_to(tokens_T, replaced_TxT.shape)
    one_text = TaskInterface({"tokens": InputSpec((1, LENGTH))}, {"tokens": TOKENS})
    two_texts = TaskInterface(
        {"source": InputSpec((1, LENGTH)), "target": InputSpec((1, LENGTH))},
        {"joint": TOKENS},
        pad_id=0,
        bos_id=1,
        eos_id=2,
    )

    def reach(
        section: Mapping[str, Any], interface: TaskInterface, name: str, other_inputs: Mapping[str, Any]
    ) -> list[list[int]]:
        model = build(model_config({**SIZES, **section}), interface, Precision())
        variables = model.init(jax.random.key(0))

        def logits(inputs: Mapping[str, Any]) -> Any:
            return model.apply(variables, {key: jnp.asarray(value) for key, value in inputs.items()}, train=False)[0]

        changed_JxIxV = logits({name: replaced_TxT, **other_inputs}) - logits({name: same_TxT, **other_inputs})
        return (np.abs(np.asarray(changed_JxIxV)).max(-1).T > 1e-6).astype(int).tolist()

    pair = {"family": "encoder_decoder", "encoder_layers": 2, "decoder_layers": 2}
    return {
        "reach": {
            "encoder": reach({"family": "encoder", "layers": 2}, one_text, "tokens", {}),
            "decoder": reach({"family": "decoder", "layers": 2}, one_text, "tokens", {}),
            "encoder-decoder, source": reach(pair, two_texts, "source", {"target": same_TxT}),
            "encoder-decoder, target": reach(pair, two_texts, "target", {"source": same_TxT}),
        }
    }


def judge(figures: Figures) -> Finding:
    """It holds if an encoder sees both sides, a decoder the left alone, and an encoder-decoder one of each."""
    reach = figures["reach"]
    shares = {name: sum(map(sum, rows)) / LENGTH**2 for name, rows in reach.items()}
    left_rows = [[int(j <= i) for j in range(LENGTH)] for i in range(LENGTH)]
    everything = [[1] * LENGTH for _ in range(LENGTH)]
    reason = (
        f"Of the pairs of an output and an input token, {shares['encoder']:.0%} are connected in an encoder and "
        f"{shares['decoder']:.0%} in a decoder, which sees the left alone; an encoder-decoder sees "
        f"{shares['encoder-decoder, source']:.0%} of its source and {shares['encoder-decoder, target']:.0%} of its "
        "target. So they can be trained on different problems."
    )
    expected = [everything, left_rows, everything, left_rows]
    return Finding(Verdict.HOLDS if [reach[name] for name in KINDS] == expected else Verdict.FAILS, reason)


def exhibits(figures: Figures) -> tuple[HeatMap | Table, ...]:
    """Show what sees what."""
    labels = [str(position) for position in range(1, LENGTH + 1)]
    heat_maps = tuple(
        HeatMap(
            caption=f"Which inputs an output depends on: {name}",
            values=rows,
            row_labels=labels,
            column_labels=labels,
            row_axis="output",
            column_axis="input",
        )
        for name, rows in figures["reach"].items()
    )
    table = Table(
        caption="Three kinds of Transformers",
        columns=("kind", "such as", "predicts"),
        rows=[(kind, *facts) for kind, facts in KINDS.items()],
    )
    return *heat_maps, table


CLAIM = Claim(
    number=43,
    title="Not all Transformers are the same",
    sentence="Models under one name differ in what they see and predict: autoencoding and autoregressive ones, and "
    "those that map one text to another.",
    lectures=("S2",),
    source="Devlin et al. 2019; Radford et al. 2018; Raffel et al. 2020, section 3.2",
    refutation="Some output of an encoder does not depend on some input, or an output of a decoder depends on a later "
    "token, or an encoder-decoder's does not depend on all of the source and the left of the target.",
    evidence=Measurement(measure=measure, seconds=10),
    judge=judge,
    exhibits=exhibits,
)
