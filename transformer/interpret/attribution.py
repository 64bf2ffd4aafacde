"""Where a prediction comes from: logit lens, direct logit attribution, attribution to source positions, path patching.

Each is a few passes of the loaded model with edited activations. A stack is named by `stack`, "decoder" or "encoder".
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer.config import UserError
from transformer.interpret.activation_cache import ActivationCache
from transformer.interpret.heat_maps import HeatMap, heat_map
from transformer.interpret.load import LoadedModel, Texts, check_single_text
from transformer.models.edits import Edit, replace


def logit_lens(
    model: LoadedModel,
    text: Texts,
    *,
    target: Texts | None = None,
    language: str | None = None,
    stack: str = "decoder",
) -> Float[Array, "L B *T V"]:
    """Return the logits that each layer's residual stream gives, read through the model's own final norm and head.

    The stream after layer l takes the place of the stream after the last layer (nostalgebraist 2020, "interpreting GPT:
    the logit lens").

    Args:
        model: The model.
        text: The text or texts that it reads.
        target: The output text or texts of an encoder-decoder.
        language: The language of the target, for a model that knows several.
        stack: The stack.

    Returns:
        The logits as of a call of the model, for each layer; the last are the model's own.

    Example:
        ```python
        import transformer
        from transformer.interpret import logit_lens

        model = transformer.load("runs/demo")
        lens = logit_lens(model, "half past nine", target="halb zehn", language="de")
        lens.shape  # layers, examples, target tokens and vocabulary
        ```
    """
    name = f"{stack}/feed_forward/residual"
    _, cache = model.run_with_cache(text, name, target=target, language=language)

    def read(stream: Array) -> Array:
        return model.run_with(text, [replace(name, stream, layers=-1)], target=target, language=language)

    return jax.lax.map(read, cache[name])


class DirectLogitAttribution(NamedTuple):
    """What every part of a model adds to a logit directly, through the last norm and the head alone.

    The logit is `attention_L` + `cross_L` + `feed_forward_L`, summed, + `embeddings` + `bias`.

    Attributes:
        heads_LxH: The heads.
        attention_L: The sub-layers of attention: the sum of their heads, and the bias of their output.
        cross_L: The sub-layers of cross-attention; None without them.
        feed_forward_L: The feed-forward networks or experts.
        embeddings: What the first layer reads.
        bias: What the last norm and the head add whatever the stream is.
    """

    heads_LxH: Float[Array, "L H"]
    attention_L: Float[Array, " L"]
    cross_L: Float[Array, " L"] | None
    feed_forward_L: Float[Array, " L"]
    embeddings: Float[Array, ""]
    bias: Float[Array, ""]

    def heat_map(self, title: str = "added to the logit") -> HeatMap:
        """Return the picture of what each head adds, and each layer's other sub-layers, by layer."""
        columns = [f"head {number}" for number in range(self.heads_LxH.shape[1])]
        sublayers = {"cross-attention": self.cross_L, "feed-forward": self.feed_forward_L}
        present = {name: part_L for name, part_L in sublayers.items() if part_L is not None}
        values_LxC = jnp.concatenate([self.heads_LxH, *(part_L[:, None] for part_L in present.values())], axis=1)
        return heat_map(values_LxC, columns=[*columns, *present], title=title)


def logit_lens_heat_map(
    model: LoadedModel,
    text: str,
    *,
    target: str | None = None,
    language: str | None = None,
    stack: str = "decoder",
) -> HeatMap:
    """Return the picture of what each layer would predict: the most probable token and its probability.

    Rows are layers, the last on top, and columns are the positions, named by the tokens that are read there.

    Args:
        model: The model.
        text: The text that it reads.
        target: The output text of an encoder-decoder.
        language: The language of the target, for a model that knows several.
        stack: The stack.

    Example:
        ```python
        import transformer
        from transformer.interpret import logit_lens_heat_map

        model = transformer.load("gpt2-folder")
        logit_lens_heat_map(model, "the quick fox").save("lens.svg")
        ```
    """
    check_single_text(text, "logit_lens_heat_map")
    logits_LxTxV = logit_lens(model, text, target=target, language=language, stack=stack)[:, 0]
    vocab_size = model.tokenizer.vocab_size
    probabilities_LxTxV = jax.nn.softmax(logits_LxTxV[..., :vocab_size])
    words = [model.tokenizer.labels(row.tolist()) for row in jnp.argmax(probabilities_LxTxV, axis=-1)]
    layers = len(words)
    return heat_map(
        jnp.max(probabilities_LxTxV, axis=-1)[::-1],
        [f"layer {layer}" for layer in reversed(range(layers))],
        model.tokens(text, target, language=language, stack=stack),
        title="what each layer would predict, and how probable it is",
        words=words[::-1],
    )


def direct_logit_attribution(
    model: LoadedModel,
    text: str,
    token: int | str,
    minus: int | str | None = None,
    *,
    target: str | None = None,
    position: int = -1,
    stack: str = "decoder",
) -> DirectLogitAttribution:
    """Return what every head and layer adds to the logit of a token directly (Elhage et al. 2021).

    The last norm is held at the factor that it has in this text, so that the logit is a linear map of the residual
    stream, and the stream is the sum of what the sub-layers add to it.

    Args:
        model: The model, with norms before its sub-layers (`norm_placement=pre` or a parallel one).
        text: The text that it reads.
        token: The token, by number or as a text of one token.
        minus: A token whose logit is subtracted: the parts are then those of the difference.
        target: The output text of an encoder-decoder.
        position: The position whose logits are read.
        stack: The stack.

    Raises:
        UserError: If the stream of the model is not the sum of its parts, or `token` is not one token.

    Example:
        ```python
        import transformer
        from transformer.interpret import direct_logit_attribution

        model = transformer.load("gpt2-folder")
        parts = direct_logit_attribution(model, "the quick fox", " the")
        parts.heads_LxH.shape  # layers and heads: what each head adds to the logit of " the"
        ```
    """
    check_single_text(text, "direct_logit_attribution")
    _, cache = model.run_with_cache(text, [f"{stack}/*", f"{stack}/self/head_contributions"], target=target)
    direction_E, bias = _logit_direction(model, text, token, minus, cache, target, position, stack)
    first_BxTxE, last_BxTxE = cache[f"{stack}/residual"][0], cache[f"{stack}/feed_forward/residual"][-1]
    attention, feed_forward = cache[f"{stack}/self/output"], cache[f"{stack}/feed_forward/output"]
    cross = cache.get(f"{stack}/cross/output")
    outputs = [attention, feed_forward] if cross is None else [attention, cross, feed_forward]
    total_BxTxE = first_BxTxE + sum(jnp.sum(output, axis=0) for output in outputs)
    contributions_LxBxTxHxE = cache[f"{stack}/self/head_contributions"]
    # What is left of attention's output is its bias, the same at every position.
    bias_LxBxTxE = attention - jnp.sum(contributions_LxBxTxHxE, axis=-2)
    errors = jnp.abs(total_BxTxE - last_BxTxE), jnp.ptp(bias_LxBxTxE, axis=2)
    if max(float(jnp.max(error)) for error in errors) > 1e-3 * float(jnp.max(jnp.abs(last_BxTxE))):
        raise UserError(
            f"{model.name} does not add what its heads return to the residual stream: direct logit attribution is for "
            "models whose norms stand before their sub-layers, such as GPT-2 and LLaMA"
        )

    def project(part: Array) -> Array:
        return part[..., 0, position, :] @ direction_E

    return DirectLogitAttribution(
        contributions_LxBxTxHxE[:, 0, position] @ direction_E,
        project(attention),
        None if cross is None else project(cross),
        project(feed_forward),
        project(first_BxTxE),
        bias,
    )


def source_attribution(
    model: LoadedModel,
    text: str,
    token: int | str,
    minus: int | str | None = None,
    *,
    layer: int,
    head: int,
    target: str | None = None,
    position: int = -1,
    stack: str = "decoder",
) -> Float[Array, " K"]:
    """Return what a head of self-attention adds to a logit directly, by the position that it takes it from.

    The part of key k is its weight times its value, through the head's rows of the output matrix. The parts sum to the
    head's part in `direct_logit_attribution`.

    Args:
        model: The model, as for `direct_logit_attribution`.
        text: The text that it reads.
        token: The token, by number or as a text of one token.
        minus: A token whose logit is subtracted.
        layer: The layer.
        head: The head.
        target: The output text of an encoder-decoder.
        position: The position whose logits are read.
        stack: The stack.
    """
    check_single_text(text, "source_attribution")
    site = f"{stack}/self"
    names = [f"{stack}/*", f"{site}/head_contributions"]
    _, cache = model.run_with_cache(text, names, target=target)
    direction_E, _ = _logit_direction(model, text, token, minus, cache, target, position, stack)

    def contribution(head_output_D: Array) -> Array:
        edit = replace(f"{site}/head_outputs", head_output_D, layers=layer, heads=head, positions=position)
        _, edited = model.with_edits([edit]).run_with_cache(text, f"{site}/head_contributions", target=target)
        return edited[f"{site}/head_contributions"][layer, 0, position, head] @ direction_E

    weights_K = cache[f"{site}/weights"][layer, 0, head, position]
    values_KxGxD = cache[f"{site}/values"][layer, 0]
    groups = values_KxGxD.shape[1]
    group = head * groups // cache[f"{site}/weights"].shape[2]
    # The map of a head's output is linear, so that its gradient is the same everywhere.
    gradient_D = jax.grad(contribution)(cache[f"{site}/head_outputs"][layer, 0, position, head])
    return weights_K * (values_KxGxD[:, group] @ gradient_D)


def path_patch(
    model: LoadedModel,
    text: Texts,
    corrupted: Texts,
    sender: Edit,
    receiver: Edit,
    *,
    target: Texts | None = None,
    frozen: tuple[str, ...] = ("decoder/self/head_outputs", "decoder/feed_forward/output"),
) -> Float[Array, "B *T V"]:
    """Return the logits if a corrupted sender reached a receiver directly (Wang et al. 2023, appendix B).

    The receiver is computed with the sender as it is in the corrupted text and all else frozen as it is in the text, so
    that only the residual stream between them carries the change. The logits are then those of the text with this
    receiver.

    Args:
        model: The model.
        text: The text or texts.
        corrupted: As many texts of the same numbers of tokens, from which the sender is taken.
        sender: The name and the choices of what is patched, as an edit without a value, such as
            `zero("decoder/self/head_outputs", layers=0, heads=1)`.
        receiver: The same of what the sender is to reach, such as `zero("decoder/self/queries", layers=3, heads=2)`.
        target: The output text or texts of an encoder-decoder, for both.
        frozen: The activations that do not react to the sender.
    """
    _, clean = model.run_with_cache(text, list(frozen), target=target)
    _, corrupted_cache = model.run_with_cache(corrupted, sender.name, target=target)
    edits = [replace(name, clean[name]) for name in frozen]
    edits.append(_with_value(sender, corrupted_cache[sender.name]))
    _, reached = model.with_edits(edits).run_with_cache(text, receiver.name, target=target)
    return model.run_with(text, [_with_value(receiver, reached[receiver.name])], target=target)


def _with_value(edit: Edit, value: Array) -> Edit:
    """The edit that replaces what another chooses by a value."""
    return replace(edit.name, value, **{f"{axis}s": index for axis, index in edit.choices().items()})


def _logit_direction(
    model: LoadedModel,
    text: str,
    token: int | str,
    minus: int | str | None,
    cache: ActivationCache,
    target: str | None,
    position: int,
    stack: str,
) -> tuple[Float[Array, " E"], Float[Array, ""]]:
    """A token's logit, less that of another, as a linear map of the last residual stream, with the norm's factor held.

    Returns:
        Its direction, and its value where the stream is zero.
    """
    numbers = [_token_number(model, token_or_text) for token_or_text in (token, minus) if token_or_text is not None]
    factor = f"{stack}/final_norm/norm_factor"
    fixed_norm = [replace(factor, cache[factor])] if factor in cache else []

    def difference(stream_E: Array) -> Array:
        stream = replace(f"{stack}/feed_forward/residual", stream_E, layers=-1, positions=position)
        logits_V = model.run_with(text, [*fixed_norm, stream], target=target)[0, position]
        return logits_V[numbers[0]] - (logits_V[numbers[1]] if len(numbers) > 1 else 0)

    bias, direction_E = jax.value_and_grad(difference)(jnp.zeros_like(cache[f"{stack}/residual"][0, 0, 0]))
    return direction_E, bias


def _token_number(model: LoadedModel, token: int | str) -> int:
    if isinstance(token, int):
        return token
    (numbers,) = model.tokenizer.encode([token])
    token_numbers = [number for number in numbers if number not in model.tokenizer.special_ids]
    if len(token_numbers) != 1:
        raise UserError(f"{token!r} is {len(token_numbers)} tokens of {model.name}: name one token, or give its number")
    return token_numbers[0]
