"""Load a model to inspect its attention, from a run's checkpoint or a Hugging Face model folder. Opens no data set."""

import contextlib
import dataclasses
import html
import logging
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from transformer.attention.capture import Capture
from transformer.attention.sites import Site
from transformer.config import UserError, hash_config
from transformer.data.tokenizers.chat_template import (
    ChatTemplate,
    Message,
    load_chat_template,
    read_published_chat_template,
    require_chat_template,
    write_prompts,
)
from transformer.huggingface.convert import open_model_folder, read_config
from transformer.interpret.activation_cache import ActivationCache, choose_names, compute_activations, token_losses
from transformer.interpret.named_maps import AttentionMaps, name_maps
from transformer.interpret.show import AttentionPage
from transformer.maps.report.page import DEFAULT_BUDGET, render_single_text
from transformer.maps.report.projections import check_query_key_vectors_size, encode_projections
from transformer.maps.report.single_text import Look, store_single_text
from transformer.models import registry as models
from transformer.models.activations import EditedModel, activation_occurrences
from transformer.models.edits import Edit
from transformer.models.model import Model, PyTree, Variables, count_parameters
from transformer.models.registry import family_name
from transformer.runs.checkpoint import StoredCheckpoint
from transformer.runs.run_directory import RunDirectory
from transformer.storage.paths import parse_path
from transformer.tasks import registry as tasks
from transformer.tasks.base_task import make_capture_function
from transformer.tasks.task import EncodedInputs, InputReader, InputTexts, PredictionRequest, StateView
from transformer.training.config import ExperimentConfig, resolve_config
from transformer.training.huggingface_conversion import FineTuningOptions, fine_tuning_config, load_preprocessing
from transformer.training.run_loading import open_run

Texts = str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]] | Int[Array, "*B T"] | Int[np.ndarray, "*B T"]
"""A text or texts; of a model that reads tokens, also one row of token numbers or several."""
TITLE = 200  # characters


@dataclasses.dataclass(frozen=True, repr=False)
class LoadedModel:
    """A model that `transformer.load` returned: run it on texts, look at its attention and change its activations.

    Attributes:
        experiment: The config of the run, or the config that a published model corresponds to.
        model: The model.
        variables: Its parameters and state.
        preprocessor: What the model encodes its inputs with: a tokenizer; for a model of images, which reads the image
            files that the texts name, the image size and the classes.
        config: The config that the page shows: the run's, or the config.json of a published model.
        step: The training step of the checkpoint; 0 for a published model.
        notes: What was skipped or converted to another dtype when a published model was read.
        chat_template: How it writes a conversation as one text; None if it has no such template.
    """

    experiment: ExperimentConfig
    model: Model
    variables: Variables
    preprocessor: Any
    config: Mapping[str, Any]
    step: int = 0
    notes: tuple[str, ...] = ()
    chat_template: ChatTemplate | None = None

    @property
    def name(self) -> str:
        """The name of the run or of the folder."""
        return self.experiment.run.name

    @property
    def sites(self) -> tuple[Site, ...]:
        """The attention modules of the model."""
        return self.model.sites

    @property
    def tokenizer(self) -> Any:
        """What the model encodes its inputs with."""
        return self.preprocessor

    @property
    def params(self) -> PyTree:
        """The parameters, nested dicts of arrays."""
        return self.variables.params

    @property
    def num_parameters(self) -> int:
        """The number of parameters."""
        return count_parameters(self.variables.params)

    def __call__(
        self, text: Texts, target: Texts | None = None, *, language: str | None = None
    ) -> Float[Array, "B *T V"]:
        """Return the logits of a text or texts, or the states of a model without a head.

        Args:
            text: The text or texts that the model reads; for a model of images, paths of image files. A
                language model or masked one also takes token numbers: a row of them, or an array [example, token].
            target: The output text or texts of an encoder-decoder. By default the model generates them.
            language: The language to generate, for a model that knows several.

        Returns:
            The logits of every example and position, padding included; those of a classifier, of every example.

        Raises:
            UserError: If a text is empty or longer than the model's maximum length, or `target` is given for a model
                that has no output text.

        Example:
            ```python
            import transformer

            model = transformer.load("runs/demo")
            model("half past four in the afternoon", language="de").shape  # examples, target tokens and vocabulary
            ```
        """
        encoded, _ = self._encode_texts(text, target, language)
        return self._run(encoded)[0]

    def run_with_cache(
        self,
        text: Texts,
        names: str | Sequence[str] | None = None,
        *,
        target: Texts | None = None,
        language: str | None = None,
    ) -> tuple[Float[Array, "B *T V"], ActivationCache]:
        """Return the logits, and activations by name.

        Args:
            text: The text or texts that the model reads.
            names: Names or patterns of them, such as "decoder/self/*"; only those are kept in memory. None means all
                but the contributions of single heads, "decoder/self/head_contributions".
            target: The output text or texts of an encoder-decoder. By default the model generates them.
            language: The language to generate, for a model that knows several.

        Returns:
            The logits as of a call, and the activations, [layer, example, ...] where each layer has one.

        Raises:
            UserError: If the model has no activation of a name, or as for a call.

        Example:
            ```python
            import transformer

            model = transformer.load("runs/demo")
            logits, cache = model.run_with_cache("half past nine", "decoder/*", language="de")
            cache["decoder/residual"][0].shape  # examples, target tokens and features before layer 0
            ```
        """
        encoded, _ = self._encode_texts(text, target, language)
        logits, arrays = self._run(encoded, choose_names(self._unedited()[0], encoded.inputs, names))
        return logits, ActivationCache(arrays, encoded.labels)

    def with_edits(self, edits: Edit | Sequence[Edit]) -> "LoadedModel":
        """Return the model with its activations edited in all that it does: maps, losses and generated texts too.

        Args:
            edits: The edits, such as `transformer.interpret.zero("decoder/self/head_outputs", layers=3, heads=1)`,
                applied in their order.

        Raises:
            UserError: If one is no edit.
        """
        edits = (edits,) if isinstance(edits, Edit) else tuple(edits)
        for edit in edits:
            if not isinstance(edit, Edit):
                raise UserError(
                    f"an edit is a value such as transformer.interpret.zero('decoder/self/head_outputs'), not a "
                    f"{type(edit).__name__}"
                )
        return dataclasses.replace(self, model=EditedModel.of(self.model, edits))

    def run_with(
        self, text: Texts, edits: Edit | Sequence[Edit], *, target: Texts | None = None, language: str | None = None
    ) -> Float[Array, "B *T V"]:
        """Return the logits with edited activations: `with_edits(edits)(text)`.

        Choices and values of edits may be traced: `jax.vmap` over heads ablates all of them in one program, and
        `jax.grad` with respect to a value gives its attribution.

        Args:
            text: The text or texts that the model reads.
            edits: The edits, applied in their order.
            target: The output text or texts of an encoder-decoder. By default the edited model generates them.
            language: The language to generate, for a model that knows several.

        Returns:
            The logits as of a call.

        Raises:
            UserError: If the model has no activation of an edit, an edit does not fit it, or as for a call.

        Example:
            ```python
            import transformer
            from transformer.interpret import zero

            model = transformer.load("runs/demo")
            edits = [zero("decoder/cross/head_outputs", layers=0, heads=1)]
            model.run_with("half past nine", edits, target="halb zehn", language="de")
            ```
        """
        return self.with_edits(edits)(text, target, language=language)

    def token_losses(
        self, text: Texts, target: Texts | None = None, *, language: str | None = None
    ) -> Float[Array, "B T"]:
        """Return -log p of the token that each position predicts, in nats; 0 where it predicts none.

        Of a language model position t predicts token t + 1, so that the last position of each text, and padding, are 0.

        Args:
            text: The text or texts; each token of a language model's is predicted from those before.
            target: The output text or texts of an encoder-decoder, whose tokens are predicted.
            language: The language of the target, for a model that knows several.

        Raises:
            UserError: If the model predicts no tokens of the texts, or as for a call.
        """
        return self._losses(text, target, language)[0]

    def loss(self, text: Texts, target: Texts | None = None, *, language: str | None = None) -> Float[Array, ""]:
        """Return the mean of `token_losses` over the predicted tokens, in nats."""
        return self._losses(text, target, language)[1]

    def top_tokens(
        self, text: str, k: int = 10, *, target: str | None = None, position: int = -1, language: str | None = None
    ) -> list[tuple[str, float]]:
        """Return the most probable tokens at a position with their probabilities.

        Args:
            text: The text that the model reads.
            k: How many tokens to return.
            target: The output text of an encoder-decoder. By default the model generates it.
            position: The position whose logits are read; by default the last, after which a language model continues.
            language: The language to generate, for a model that knows several.

        Raises:
            UserError: If the model has no logits of tokens, or as for a call.
        """
        check_single_text(text, "top_tokens")
        encoded, _ = self._encode_texts(text, target, language)
        if self.preprocessor is None or "logits" not in activation_occurrences(self._unedited()[0], encoded.inputs):
            raise UserError(f"{self.name} has no logits of tokens: name a model that predicts tokens")
        logits, _ = self._run(encoded)
        logits_V = logits[0, position, : self.preprocessor.vocab_size]
        probabilities, numbers = jax.lax.top_k(jax.nn.softmax(logits_V), k)
        texts = self.preprocessor.labels(numbers.tolist())
        return list(zip(texts, probabilities.tolist(), strict=True))

    def tokens(
        self, text: str, target: str | None = None, *, language: str | None = None, stack: str | None = None
    ) -> tuple[str, ...]:
        """Return the token at each position of a stack, with the special tokens that the model reads.

        Args:
            text: The text that the model reads.
            target: The output text of an encoder-decoder. By default the model generates it.
            language: The language to generate, for a model that knows several.
            stack: "encoder" or "decoder", where a model has both; by default the last.

        Raises:
            UserError: If the model has no attention in such a stack, or as for a call.
        """
        check_single_text(text, "tokens")
        encoded, _ = self._encode_texts(text, target, language)
        sites = [site for site in self.sites if stack in (None, site.name.partition("/")[0])]
        if not sites:
            names = ", ".join(site.name for site in self.sites) or "none"
            raise UserError(f"stack={stack!r} has no attention in {self.name}: its modules are {names}")
        return encoded.labels.with_axis_names(self.sites).tokens[sites[-1].query.name][0]

    def generate(self, text: Texts, *, language: str | None = None, **decoding: Any) -> str | list[str]:
        """Return what the model generates: a language model the texts with their continuations, a translator others.

        Args:
            text: The text or texts.
            language: The language to generate, for a model that knows several.
            **decoding: Fields of `DecodingConfig` that differ from the run's own, such as `max_new_tokens=20`,
                `num_beams=4` or `temperature=1.0`.

        Returns:
            A text, or for several texts a list; with `num_samples`, as many of each text, in the order of the texts.

        Raises:
            UserError: If the model generates no texts, an option is invalid, or a text is too long.
        """
        reader = tasks.TASKS[tasks.task_name(self.experiment.task)].input_reader
        if reader is None or reader.generate is None:
            raise UserError(f"{self.name} generates no texts: name a language model or a model that translates")
        request = PredictionRequest(_as_strings(text), language, decoding)
        lines = list(reader.generate(self.experiment.task, self.view(), self.preprocessor, request))
        return lines[0] if isinstance(text, str) and len(lines) == 1 else lines

    def apply_chat_template(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = False, **variables: Any
    ) -> str:
        """Return a conversation as the one text that the model reads, by the chat template that came with the model.

        The template is a stranger's program. Nothing but this method and `chat` runs it, in a process with limits
        (`transformer.data.tokenizers.chat_template.ChatTemplate`).

        Args:
            messages: The messages, oldest first, each with `role` and `content`.
            add_generation_prompt: Whether the text ends where the model's answer begins.
            **variables: What else the template reads, such as tools or whether to think.

        Raises:
            UserError: If the model has no chat template, jinja2 is missing, or the template is wrong, refuses the
                messages or exceeds its limits.
        """
        template = require_chat_template(self.chat_template, self.name)
        (text,) = template.render([messages], add_generation_prompt=add_generation_prompt, **variables)
        return text

    def chat(self, messages: Sequence[Message], variables: Mapping[str, Any] | None = None, **decoding: Any) -> str:
        """Return the model's answer to a conversation.

        Args:
            messages: The messages, oldest first, each with `role` and `content`. None may name a special token of the
                tokenizer.
            variables: What else the chat template reads, such as whether to think.
            **decoding: Fields of `DecodingConfig` that differ from the run's own, such as `max_new_tokens=200`.

        Raises:
            UserError: If the model does not continue texts, a message names a special token, or as for
                `apply_chat_template` and `generate`.

        Example:
            ```python
            import transformer

            model = transformer.load("chat-folder")
            messages = [{"role": "user", "content": "Name a color."}]
            messages.append({"role": "assistant", "content": model.chat(messages, max_new_tokens=12)})
            ```
        """
        reader = _input_reader(self.experiment)
        if not reader.chats or reader.generate is None:
            raise UserError(f"{self.name} does not chat: name a language model")
        (prompt,) = write_prompts(self.chat_template, self.name, self.preprocessor, [messages], variables)
        request = PredictionRequest((prompt,), None, {"num_samples": 1, **decoding}, is_chat=True)
        (answer,) = reader.generate(self.experiment.task, self.view(), self.preprocessor, request)
        return answer

    def show_attention(
        self,
        text: Texts,
        target: Texts | None = None,
        *,
        language: str | None = None,
        page: str | Path | None = None,
        budget: int = DEFAULT_BUDGET,
        query_key_vectors: bool = False,
    ) -> AttentionPage:
        """Return a page that shows what every head attends to in one or several texts.

        A notebook displays the page in the cell. Elsewhere, or if `page` is given, it is written to a file whose path
        is printed.

        Args:
            text: The text or texts that the model reads; for a model of images, paths of image files.
            target: The output text or texts of an encoder-decoder. By default the model generates them.
            language: The language to generate, for a model that knows several.
            page: The file to write, by default a new temporary file.
            budget: The largest size of the page in bytes.
            query_key_vectors: Whether to add every query and key, so that the page shows how their components make up a
                logit. They take as much space as the model is wide: use it with short texts.

        Returns:
            The page, with its path if it was written.

        Raises:
            UserError: If a text is empty or longer than the model's maximum length, `target` is given for a model that
                has no output text, the model has no attention, `query_key_vectors` take more than 8 MB, or the page
                cannot be written or does not fit `budget`.

        Example:
            ```python
            import transformer

            model = transformer.load("runs/demo")
            model.show_attention("half past nine", language="de", page="half_past_nine.html")
            ```
        """
        encoded, titles = self._encode_texts(text, target, language)
        labels = dataclasses.replace(encoded.labels, titles=titles)
        capture_maps = self._capture_function(encoded, query_key_vectors)
        if query_key_vectors:
            names = tuple(site.name for site in self.sites)
            check_query_key_vectors_size(jax.eval_shape(lambda: capture_maps(Capture(names, maps=False))))
        settings = (self.experiment.maps, hash_config(self.config))
        with tempfile.TemporaryDirectory() as folder:
            store, captured = store_single_text(Path(folder) / "maps", self.sites, labels, capture_maps, *settings)
            projections = encode_projections(self.sites, store.labels, captured, query_key_vectors)
            page_html = render_single_text(
                store, self.name, self.config, self.num_parameters, budget, projections=projections
            )
        return AttentionPage(" / ".join(titles), page_html).display_or_save(page)

    def _capture_function(self, reading: EncodedInputs, query_key_vectors: bool) -> Look:
        """Return a pass over the encoded texts that also captures value norms and, if asked, queries and keys."""
        look = make_capture_function(self.view(), reading.inputs, method=reading.method)
        return lambda capture: look(dataclasses.replace(capture, value_norms=True, query_key_vectors=query_key_vectors))

    def run_with_maps(self, text: Texts, target: Texts | None = None, *, language: str | None = None) -> AttentionMaps:
        """Return the attention weights of every head as named arrays.

        Args:
            text: The text or texts that the model reads.
            target: The output text or texts of an encoder-decoder. By default the model generates them.
            language: The language to generate, for a model that knows several.

        Returns:
            The maps by the name of their attention module, then by layer; those of a layer are [example, head, query,
            key].

        Raises:
            UserError: If the model has no attention, a text is empty or longer than the model's maximum length, or
                `target` is given for a model that has no output text.

        Example:
            ```python
            import transformer

            maps = transformer.load("runs/demo").run_with_maps("half past four in the afternoon", language="de")
            maps["decoder/cross"][-1].shape  # examples, heads, target tokens and source tokens of the last layer
            ```
        """
        if not self.sites:
            raise UserError(f"{self.name} is a model without attention: it has no maps")
        encoded, _ = self._encode_texts(text, target, language)
        capture = Capture(tuple(site.name for site in self.sites))
        captured = make_capture_function(self.view(), encoded.inputs, method=encoded.method)(capture)
        return name_maps(self.sites, encoded.labels.with_axis_names(self.sites), captured)

    def _unedited(self) -> tuple[Model, tuple[Edit, ...]]:
        """Return the model without edits, which programs are compiled for, and its edits."""
        if isinstance(self.model, EditedModel):
            return self.model.unedited, self.model.edits
        return self.model, ()

    def _run(self, encoded: EncodedInputs, names: tuple[str, ...] = ()) -> tuple[Array, dict[str, Array]]:
        """Return the outputs of `forward` and activations."""
        model, edits = self._unedited()
        return compute_activations(model, self.variables, encoded.inputs, names, edits)

    def _losses(self, text: Texts, target: Texts | None, language: str | None) -> tuple[Array, Array]:
        encoded, _ = self._encode_texts(text, target, language)
        if encoded.predicted_BxT is None:
            raise UserError(f"{self.name} predicts no tokens of texts: name a language model or one that translates")
        return token_losses(self._run(encoded)[0], encoded.predicted_BxT)

    def _encode_texts(
        self, text: Texts, target: Texts | None, language: str | None
    ) -> tuple[EncodedInputs, tuple[str, ...]]:
        """Encode the texts as the model reads them, and return the title of each example."""
        reader = tasks.TASKS[tasks.task_name(self.experiment.task)].input_reader
        assert reader is not None  # as load has seen
        token_rows = _as_token_rows(text)
        if token_rows and not reader.reads_tokens:
            raise UserError(f"{self.name} reads texts: only language models and masked ones read token numbers")
        texts = tuple(f"tokens {row}" for row in token_rows) or _as_strings(text)
        targets = None if target is None else _as_strings(target)
        given = InputTexts(texts, targets, language, token_rows)
        encoded = reader.encode(self.experiment.task, self.view(), self.preprocessor, given)
        sides = texts if targets is None else map(" → ".join, zip(texts, targets, strict=True))
        lines = (" ".join(line.split()) for line in sides)
        return encoded, tuple(line if len(line) <= TITLE else f"{line[: TITLE - 1]}…" for line in lines)

    def view(self) -> StateView:
        """Return the model and its variables as tasks read them."""
        return StateView(self.model, self.variables, {}, {}, jnp.int32(self.step), train=False)

    def __repr__(self) -> str:
        heads = sum(len(site.layers) * len(site.heads) for site in self.sites)
        counts = f"{self.num_parameters:,} parameters, {heads} heads at {', '.join(site.name for site in self.sites)}"
        return f"LoadedModel({self.name!r}: {family_name(self.experiment.model)}, {counts})"

    def _repr_html_(self) -> str:
        """Return a table of the attention modules, as notebooks display it."""
        rows = "".join(
            f"<tr><td>{html.escape(site.name)}</td><td>{len(site.layers)}</td><td>{len(site.heads)}</td></tr>"
            for site in self.sites
        )
        table = f"<table><tr><th>site</th><th>layers</th><th>heads</th></tr>{rows}</table>"
        summary = f"{family_name(self.experiment.model)}, {self.num_parameters:,} parameters"
        calls = "<code>.show_attention(text)</code> shows what every head attends to"
        return f"<p><b>{html.escape(self.name)}</b>: {summary}; {calls}</p>{table}"


def load(
    source: str | Path, *, step: int | None = None, trust: Collection[str] = (), dtype: str | None = None
) -> LoadedModel:
    """Load the model of a run directory or of a Hugging Face model folder.

    A model folder has config.json, model.safetensors and, for a model of texts, a tokenizer. Nothing is downloaded, and
    no code of the folder is run. Of a run, the parameters are those that it is evaluated with
    (`ExperimentConfig.eval_parameters`).

    Args:
        source: The run directory or model folder.
        step: The training step of the run's checkpoint, by default the newest undamaged one.
        trust: Dotted paths of your own modules that the run's config may name as code.
        dtype: The type in which a published model is stored and computes, such as "bfloat16" for half the memory; by
            default "float32". A run has the precision of its config.

    Returns:
        The loaded model.

    Raises:
        UserError: If the folder holds neither a run nor a model that can be read, `step` is given for a published
            model or `dtype` for a run, or the task of the run reads no texts.

    Example:
        ```python
        import transformer

        model = transformer.load("runs/demo")
        model.name  # "demo"
        ```
    """
    folder = parse_path(source)
    run = RunDirectory(folder)
    config = run.config() if run.is_run() and not run.config_file.exists() else read_config(folder)
    if "model_type" not in config:
        if "task" not in config:
            raise UserError(f"{source} is neither a run nor a published model: its config.json has no model_type")
        if dtype is not None:
            raise UserError(f"dtype={dtype} is of published models: {source} is a run, whose config has its precision")
        return _load_run(folder, step, trust)
    if step is not None:
        raise UserError(f"step={step} is of a run's checkpoints: {source} is a published model, which has none")
    return _load_published(folder, dtype or "float32")


def _as_strings(texts: Texts) -> tuple[str, ...]:
    """Return the texts as a tuple.

    Raises:
        UserError: If one is no text.
    """
    examples = (texts,) if isinstance(texts, str) else tuple(texts)
    strings = tuple(example for example in examples if isinstance(example, str))
    if len(strings) < len(examples):
        raise UserError("here a text is a string: only what reads texts, and does not write them, takes token numbers")
    return strings


def _as_token_rows(texts: Texts) -> list[list[int]]:
    """Return the rows of token numbers, none if these are texts."""
    rows: list[Any] = [texts] if _is_token_row(texts) else [] if isinstance(texts, str) else list(texts)
    return [[int(number) for number in row] for row in rows] if rows and all(map(_is_token_row, rows)) else []


def _is_token_row(text: Any) -> bool:
    if isinstance(text, (np.ndarray, jax.Array)):
        return text.ndim == 1 and jnp.issubdtype(text.dtype, jnp.integer)
    return isinstance(text, Sequence) and len(text) > 0 and all(isinstance(n, (int, np.integer)) for n in text)


def check_single_text(text: Texts, does: str) -> None:
    """Refuse several texts where one is read, whose last position would be padding in the shorter ones.

    Raises:
        UserError: If `text` is neither one string nor one row of token numbers.
    """
    if not (isinstance(text, str) or _is_token_row(text)):
        raise UserError(f"{does} reads one text: call it once for each")


def _load_published(folder: Path, dtype: str) -> LoadedModel:
    options = FineTuningOptions(dtype=dtype)
    imported = open_model_folder(folder, dtype)
    preprocessor = load_preprocessing(folder, imported)
    experiment = resolve_config(fine_tuning_config(imported, preprocessor, options, name=folder.resolve().name))
    model = _build_model(experiment, preprocessor)
    # Nobody else holds these arrays: on a CPU they are taken over as they are, where asarray would copy them.
    params = jax.tree.map(jax.device_put, imported.read_params())
    state = model.functional.bind(params).initial_state(jax.random.key(0))
    variables, template = Variables(params, state), read_published_chat_template(folder)
    return LoadedModel(experiment, model, variables, preprocessor, imported.config, 0, tuple(imported.notes), template)


def _load_run(folder: Path, step: int | None, trust: Collection[str]) -> LoadedModel:
    run = open_run(folder, trust)
    experiment, path = run.experiment, run.directory.path
    preprocessor = _input_reader(experiment).load_preprocessor(path)
    model = _build_model(experiment, preprocessor)
    shapes = model.shapes()

    def read(checkpoint: StoredCheckpoint) -> Variables:
        state = checkpoint.restore(shapes.state, ("variables", "state"))
        return Variables(run.restore_eval_parameters(checkpoint, shapes.params), state)

    with _silence_orbax_warnings():
        step, variables = run.read_checkpoint(step, read)
    template = load_chat_template(path)
    return LoadedModel(experiment, model, variables, preprocessor, experiment.to_config(), step, chat_template=template)


@contextlib.contextmanager
def _silence_orbax_warnings() -> Iterator[None]:
    """Silence orbax's warnings about a checkpoint that is opened for reading only; they go through absl's logger."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _input_reader(experiment: ExperimentConfig) -> InputReader:
    name = tasks.task_name(experiment.task)
    reader = tasks.TASKS[name].input_reader
    if reader is None:
        raise UserError(f"this run's task, {name}, reads no sentences: open its maps with transformer.maps.open")
    return reader


def _build_model(experiment: ExperimentConfig, preprocessor: Any) -> Model:
    interface = _input_reader(experiment).make_task_interface(experiment.task, preprocessor)
    # Nothing is predicted: a model without the head of the task, such as a bare encoder, will do.
    return models.build(experiment.model, dataclasses.replace(interface, output=None), experiment.precision)
