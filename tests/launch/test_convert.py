"""`launch.convert`: a published folder becomes a run on which everything works, and a run becomes such a folder."""

import itertools
import json
from pathlib import Path

import jax
import numpy as np
import pytest
import tokenizers
from safetensors.numpy import load_file
from tokenizers import decoders, models, pre_tokenizers, processors

from launch import cli, convert, evaluate, generate, maps, train
from tests.golden.recordings import FOLDER, Recording, head_recording, recording
from tests.models.test_xlnet import recorded as recorded_xlnet
from transformer.data.datasets.fine_tuning import FineTuningProblem
from transformer.interpret.load import load
from transformer.runs.checkpoint import Checkpoints
from transformer.runs.run_directory import RunDirectory
from transformer.training.run_loading import load_run

TEXT = "the quick brown fox jumps over the lazy dog and runs away from the slow gray cat. " * 20
# The names of a family's special tokens; the last is the unknown's.
SPECIAL = {
    "gpt2": {"eos_token": "<end>", "unk_token": "<unk>"},
    "bert": {
        "pad_token": "[PAD]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
        "unk_token": "[UNK]",
    },
    "xlnet": {
        "pad_token": "<pad>",
        "cls_token": "<cls>",
        "sep_token": "<sep>",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
    },
    "t5": {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"},
    "llama": {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
}
SPECIAL |= {
    "mistral": SPECIAL["llama"],
    "bart": SPECIAL["llama"],
    "mbart": SPECIAL["llama"],
    "mt5": SPECIAL["t5"],
    "electra": SPECIAL["bert"],
}
CLASSIFIERS = FOLDER.with_name("classifiers")
TASKS = {"gpt2": "language_modeling", "bert": "masked_lm", "t5": "translation"}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "text"
    folder.mkdir()
    for split in ("train", "validation", "test"):
        (folder / f"{split}.txt").write_text(TEXT)
    return folder


def publish(name: str, folder: Path, recordings: Path = FOLDER) -> Path:
    """A folder as Hugging Face publishes them: a recorded model, and a tokenizer of characters."""
    write_published(recording(name, recordings), folder)
    return write_tokenizer(name, folder)


def publish_head(case: str, folder: Path) -> Path:
    """The same of a model with another head than that of next tokens, or with none."""
    write_published(head_recording(case), folder)
    return write_tokenizer(case.partition("/")[0], folder)


def write_published(recorded: Recording, folder: Path) -> None:
    config = recorded.config | {"bos_token_id": None, "eos_token_id": None}
    recorded._replace(about={**recorded.about, "config": config}).write(folder)


def write_tokenizer(name: str, folder: Path) -> Path:
    special = SPECIAL[name]
    pieces = [*special.values(), *map(chr, range(ord("a"), ord("z") + 1)), *" .,'?!-0123456789"]
    backend = tokenizers.Tokenizer(
        models.WordLevel({piece: number for number, piece in enumerate(pieces)}, special["unk_token"])
    )
    backend.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex("."), "isolated")
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens(list(special.values()))
    if name == "bart":
        ends = [(special[role], pieces.index(special[role])) for role in ("bos_token", "eos_token")]
        backend.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=ends)
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(special))
    return folder


def pre_trained(name: str, folder: Path) -> Path:
    """A folder of a model with its head of pre-training."""
    if name != "xlnet":
        return publish(name, folder)
    publish(name, folder, CLASSIFIERS)
    recorded_xlnet().write(folder)
    return folder


def call(module: object, *words: str) -> int:
    return cli.run(module.COMMAND, module.main, words)  # type: ignore[attr-defined]


def pages(capsys: pytest.CaptureFixture[str], run: Path, *words: str) -> str:
    """What launch.maps says of a run."""
    assert call(maps, f"--workdir={run}", *words) == 0
    return capsys.readouterr().out


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert call(convert, *words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    return said.err


def test_the_help_lists_every_problem(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(convert.COMMAND, convert.main, ["--help"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    problems = [problem.value for problem in FineTuningProblem]
    assert f"{', '.join(problems)}, token_classification or question_answering" in words


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_a_language_model_comes_in_speaks_and_goes_out(
    name: str, tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, run, out = publish(name, tmp_path / "in"), tmp_path / "run", tmp_path / "out"
    words = (f"--dataset={data}", "--context_length=12", "--batch_size=2")
    assert call(convert, f"--from_pretrained={source}", f"--workdir={run}", *words) == 0
    said = capsys.readouterr().out
    assert f"at step 0, task {TASKS[name]}" in said
    assert f"python -m launch.train --workdir={run}" in said
    asked = {"gpt2": ("--text=the fox", "--max_new_tokens=3"), "bert": ("--text=the [MASK]ox",)}[name]
    assert call(generate, f"--workdir={run}", *asked) == 0
    said = capsys.readouterr()
    assert said.out.startswith("the ")
    # What was just converted has pages, though it has trained nothing: of the answer, of its probe, of any text.
    for told in (said.err, *(pages(capsys, run, *words) for words in ((), ("--text=the fox",)))):
        path = Path(told.removeprefix("Open this page in a browser: ").strip())
        page = path.read_text()
        assert path.is_relative_to(run)
        assert '"curves":{}' in page
        assert '"steps":[0]' in page
    assert call(convert, f"--workdir={run}", f"--save_pretrained={out}") == 0
    written, read = load_file(out / "model.safetensors"), load_file(source / "model.safetensors")
    assert {key: value.tobytes() for key, value in written.items()} == {k: v.tobytes() for k, v in read.items()}
    theirs, ours = (json.loads((folder / "tokenizer_config.json").read_text()) for folder in (source, out))
    assert theirs.items() <= ours.items()
    assert (out / "tokenizer.json").is_file()
    absent = refusal(capsys, f"--workdir={run}", f"--save_pretrained={tmp_path / 'no'}", "--step=7")
    assert "no checkpoint of step 7" in absent


def test_a_model_is_imported_in_half_the_memory(tmp_path: Path, data: Path) -> None:
    source, run = publish("gpt2", tmp_path / "in"), tmp_path / "run"
    words = (f"--dataset={data}", "--context_length=12", "--batch_size=2", "--dtype=bfloat16")
    assert call(convert, f"--from_pretrained={source}", f"--workdir={run}", *words) == 0
    assert RunDirectory(run).config()["precision"] == {
        "parameters": "bfloat16",
        "compute": "bfloat16",
        "logits": "float32",
    }
    with Checkpoints.open_read_only(run / "checkpoints") as checkpoints:
        stored = checkpoints.read(0).leaves
    parameters = [leaf for name, leaf in stored.items() if name.startswith("variables/params/")]
    assert {str(leaf.dtype) for leaf in parameters} == {"bfloat16"}


@pytest.mark.slow
def test_a_text_ends_with_each_end_token_of_the_folder_which_go_out_again(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (f"--dataset={data}", "--context_length=12")
    asked = ("--text=the fox", "--max_new_tokens=8", "--no_maps")

    def text_of(run: Path, source: Path) -> str:
        assert call(convert, f"--from_pretrained={source}", f"--workdir={run}", *words) == 0
        capsys.readouterr()
        assert call(generate, f"--workdir={run}", *asked) == 0
        return capsys.readouterr().out.removesuffix("\n").removeprefix("the fox")

    source = publish("gpt2", tmp_path / "in")
    whole = text_of(tmp_path / "before", source)
    # The last letter that has not stood before: everything in front of it remains.
    place = max(number for number, letter in enumerate(whole) if letter not in whole[:number])
    tokenizer = tokenizers.Tokenizer.from_file(str(source / "tokenizer.json"))
    ends = [tokenizer.token_to_id(SPECIAL["gpt2"]["eos_token"]), tokenizer.token_to_id(whole[place])]
    (source / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    assert place > 0
    assert text_of(tmp_path / "after", source) == whole[:place]
    assert call(convert, f"--workdir={tmp_path / 'after'}", f"--save_pretrained={tmp_path / 'out'}") == 0
    assert json.loads((tmp_path / "out" / "generation_config.json").read_text())["eos_token_id"] == ends


@pytest.mark.slow
def test_a_run_that_was_converted_trains_further(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, run = publish("gpt2", tmp_path / "in"), tmp_path / "run"
    words = (f"--dataset={data}", "--steps=1", "--context_length=12", "--batch_size=8")
    assert call(convert, f"--from_pretrained={source}", f"--workdir={run}", *words) == 0
    assert call(train, f"--workdir={run}", "--config.maps_every=0") == 0
    assert "resuming from step 0 to step 1" in capsys.readouterr().out
    _, _, state = load_run(run)
    assert int(state.step) == 1
    start = load_file(source / "model.safetensors")["transformer.wte.weight"]
    change = np.abs(np.asarray(state.variables.params["embedding"]["table"]) - start)
    assert 0 < change.max() < 1e-3
    assert call(evaluate, f"--workdir={run}") == 0
    assert call(maps, f"--workdir={run}") == 0
    assert (run / "report.html").is_file()
    capsys.readouterr()
    assert call(convert, f"--workdir={run}", f"--save_pretrained={tmp_path / 'trained'}") == 0
    assert "  step 1" in capsys.readouterr().out


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """Labeled pairs of texts, and the first of each with a label of its own."""
    counts = [(n, n + n % 3, ("no", "perhaps", "yes")[n % 3]) for n in range(40)]
    rows = [f"{one} cats\t{other} cats\t{label}\t{one} cats" for one, other, label in counts]
    (tmp_path / "pairs.tsv").write_text("\n".join(["premise\thypothesis\tlabel\ttext", *rows]))
    return tmp_path / "pairs.tsv"


@pytest.mark.parametrize(
    ("name", "recordings", "wanted", "says"),
    [
        pytest.param("bert", FOLDER, "no,perhaps,yes", "initialized randomly: classes, pooler", id="masked"),
        pytest.param(
            "bert_score",
            CLASSIFIERS,
            "no,perhaps,yes",
            "initialized randomly: classes",
            id="scores",
            marks=pytest.mark.slow,
        ),
        pytest.param("bert", CLASSIFIERS, "a,b,c", "initialized randomly: classes", id="other classes"),
    ],
)
def test_any_bert_becomes_a_classifier_of_the_users_texts(
    name: str, recordings: Path, wanted: str, says: str, pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, run = publish("bert", tmp_path / "in"), tmp_path / "run"
    recording(name, recordings).write(source)
    for new, old in zip(wanted.split(","), ("no", "perhaps", "yes"), strict=True):
        pairs.write_text(pairs.read_text().replace(f"\t{old}\t", f"\t{new}\t"))
    words = (f"--from_pretrained={source}", f"--workdir={run}", f"--dataset={pairs}", f"--classes={wanted}")
    assert call(convert, *words, "--context_length=20", "--batch_size=8") == 0
    said = capsys.readouterr().out
    assert "at step 0, task fine_tuning" in said
    assert [line for line in said.splitlines() if "randomly" in line] == ([f"  {says}"] if says else [])
    _, setting, state = load_run(run)
    assert setting.task.interface.vocabularies["classes"] == 3
    read, params = load_file(source / "model.safetensors"), state.variables.params
    table = read["bert.embeddings.word_embeddings.weight"]
    np.testing.assert_array_equal(np.asarray(params["embedding"]["table"]), table)
    if name == "bert" and recordings == CLASSIFIERS:
        assert "the head begins anew: the classes are a, b, c, and there no, perhaps, yes" in said


ORDERS = [
    *(("bert", order) for order in itertools.permutations(("no", "perhaps", "yes"))),
    *(("bert_tokens", order) for order in (("yes", "no", "perhaps"), ("perhaps", "yes", "no"))),
    ("bert", ("YES", "No", "Perhaps")),
    ("bert", ("yes", "NO", "Perhaps")),
    ("bert", ("yes", "never", "no")),
]


@pytest.mark.parametrize(
    ("name", "order"),
    [pytest.param(*each, marks=pytest.mark.slow) for each in ORDERS[:4]] + ORDERS[4:],
    ids=[f"{name} {' '.join(order)}" for name, order in ORDERS],
)
def test_a_head_keeps_what_its_outputs_mean_in_any_order_of_the_labels(
    name: str, order: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, run = publish("bert", tmp_path / "in"), tmp_path / "run"
    recording(name, CLASSIFIERS).write(source)
    labels = [order[number % 3] for number in range(80)]
    if name == "bert":
        file = tmp_path / "texts.tsv"
        rows = [f"{number} cats\t{label}" for number, label in enumerate(labels)]
        file.write_text("\n".join(["text\tlabel", *rows]))
    else:
        file = tmp_path / "words.conll"
        file.write_text("\n\n".join(f"w{number} {label}" for number, label in enumerate(labels)))
    problem = {"bert": "classification", "bert_tokens": "token_classification"}[name]
    words = (f"--from_pretrained={source}", f"--workdir={run}", f"--dataset={file}", f"--problem={problem}")
    assert call(convert, *words, f"--classes={', '.join(order)}", "--context_length=20", "--batch_size=8") == 0
    said = capsys.readouterr().out
    _, setting, state = load_run(run)
    assert setting.class_names == order
    weight, bias = (load_file(source / "model.safetensors")[f"classifier.{part}"] for part in ("weight", "bias"))
    head = {part: np.asarray(values) for part, values in state.variables.params["classes"].items()}
    for number, label in enumerate(order):
        there = ("no", "perhaps", "yes").index(label.lower()) if label != "never" else None
        if there is not None:
            np.testing.assert_array_equal(head["kernel"][:, number], weight[there])
            assert head["bias"][number] == bias[there]
        else:
            assert not np.any(np.all(head["kernel"][:, number] == weight, axis=-1))
            assert head["bias"][number] == 0
    if "never" in order:
        assert "classes matched by name: 2 of 3; initialized randomly: never" in said
    else:
        assert ("classes matched by name: all 3" in said) == (order != ("no", "perhaps", "yes"))


def test_a_folder_that_names_no_class_takes_the_users_names_and_says_so(
    pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, run = publish("bert", tmp_path / "in", CLASSIFIERS), tmp_path / "run"
    config = json.loads((source / "config.json").read_text())
    config |= {"id2label": {str(number): f"LABEL_{number}" for number in range(3)}}
    (source / "config.json").write_text(json.dumps(config))
    words = (f"--from_pretrained={source}", f"--workdir={run}", f"--dataset={pairs}", "--problem=entailment")
    assert call(convert, *words, "--classes=yes,no,perhaps", "--context_length=20", "--batch_size=8") == 0
    assert "names no class: its outputs are taken to be yes, no, perhaps, in this order" in capsys.readouterr().out
    config |= {"id2label": {"1": "no", "2": "perhaps", "3": "yes"}}
    (source / "config.json").write_text(json.dumps(config))
    said = refusal(capsys, *words[:1], f"--workdir={tmp_path / 'other'}", *words[2:])
    assert "must name the classes 0 to 2" in said


def test_what_a_classifier_needs_is_told(pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, run = publish("bert", tmp_path / "in", CLASSIFIERS), f"--workdir={tmp_path / 'run'}"
    assert "a model for fine_tuning needs its data: give --dataset=FILE.tsv" in refusal(
        capsys, f"--from_pretrained={source}", run
    )
    plain = publish("mbart", tmp_path / "mbart")
    said = refusal(capsys, f"--from_pretrained={plain}", run, "--problem=entailment")
    assert "are for models that are fine-tuned on texts, decoders and those of model_type " in said
    assert said.endswith(", not for mbart\n")
    assert "config.task.problem='entail'" in refusal(
        capsys, f"--from_pretrained={source}", run, f"--dataset={pairs}", "--problem=entail"
    )


@pytest.mark.slow
def test_an_xlnet_becomes_a_classifier_of_the_users_texts(
    pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, run, out = pre_trained("xlnet", tmp_path / "in"), tmp_path / "run", tmp_path / "out"
    words = (f"--from_pretrained={source}", f"--workdir={run}", f"--dataset={pairs}", "--problem=entailment")
    assert call(convert, *words, "--classes=no,perhaps,yes", "--context_length=24", "--batch_size=8", "--steps=1") == 0
    said = capsys.readouterr().out
    assert "at step 0, task fine_tuning" in said
    assert "  initialized randomly: classes, pooler" in said
    _, setting, _ = load_run(run)
    # <cls> and <sep> are 1 and 2, <pad> is 0.
    batch = setting.task.training_batches(0)[0]
    ends = [row[length - 2 : length].tolist() for row, length in zip(batch["tokens"], batch["lengths"], strict=True)]
    assert ends == [[2, 1]] * 8
    assert call(train, f"--workdir={run}", "--config.maps_every=1") == 0
    assert call(generate, f"--workdir={run}", "--text=2 cats $ 4 cats") == 0
    assert call(convert, f"--workdir={run}", f"--save_pretrained={out}") == 0
    assert json.loads((out / "config.json").read_text())["architectures"] == ["XLNetForSequenceClassification"]
    # The library classifies the state at the last place of a batch.
    assert json.loads((out / "tokenizer_config.json").read_text())["padding_side"] == "left"
    again = tmp_path / "again"
    words = (f"--from_pretrained={out}", f"--workdir={again}", f"--dataset={pairs}", "--problem=entailment")
    capsys.readouterr()
    assert call(convert, *words, "--context_length=24", "--batch_size=8") == 0
    assert "randomly" not in capsys.readouterr().out
    one, other = (load_run(folder)[2].variables.params for folder in (run, again))
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.mark.slow
def test_a_classifier_of_pairs_answers_trains_and_goes_out(
    pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, run = publish("bert", tmp_path / "in", CLASSIFIERS), tmp_path / "run"
    words = (f"--from_pretrained={source}", f"--workdir={run}", f"--dataset={pairs}", "--problem=entailment")
    assert call(convert, *words, "--context_length=20", "--batch_size=8", "--steps=1") == 0
    capsys.readouterr()
    assert call(generate, f"--workdir={run}", "--text=2 cats $ 4 cats") == 0
    answer = capsys.readouterr().out.split()
    opened = load(source)
    # [CLS] and [SEP] are 1 and 2; the second text's token types are 1.
    encoded = [
        [5 + 26 + " .,'?!-0123456789".index(c) if not c.isalpha() else 5 + ord(c) - 97 for c in text]
        for text in ("2 cats", "4 cats")
    ]
    tokens = np.int32([[1, *encoded[0], 2, *encoded[1], 2]])
    inputs = {"tokens": tokens, "lengths": np.int32([15]), "types": np.int32([[0] * 8 + [1] * 7])}
    logits = np.asarray(opened.model.apply(opened.variables, inputs, train=False)[0][0], np.float64)
    probabilities = np.exp(logits) / np.exp(logits).sum()
    assert answer[0] == ("no", "perhaps", "yes")[logits.argmax()]
    assert float(answer[1]) == pytest.approx(probabilities.max(), abs=6e-4)
    assert call(train, f"--workdir={run}", "--config.maps_every=0") == 0
    assert call(convert, f"--workdir={run}", f"--save_pretrained={tmp_path / 'out'}") == 0
    written, read = load_file(tmp_path / "out/model.safetensors"), load_file(source / "model.safetensors")
    assert written.keys() == read.keys()
    assert 0 < np.abs(written["classifier.weight"] - read["classifier.weight"]).max() < 1e-3
    again = json.loads((tmp_path / "out/config.json").read_text())
    assert again["architectures"] == ["BertForSequenceClassification"]
    assert again["id2label"] == {"0": "no", "1": "perhaps", "2": "yes"}
    capsys.readouterr()


@pytest.mark.slow
def test_a_translator_comes_in_with_its_start_token(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, run = publish("t5", tmp_path / "in"), tmp_path / "run"
    config = json.loads((source / "config.json").read_text()) | {"eos_token_id": 1}
    (source / "config.json").write_text(json.dumps(config))
    assert (
        call(
            convert,
            f"--from_pretrained={source}",
            f"--workdir={run}",
            "--context_length=64",
            "--batch_size=2",
            "--steps=1",
        )
        == 0
    )
    directory = RunDirectory.open(run)
    assert directory.config()["task"]["name"] == "translation"
    assert directory.config()["model"]["positions"] == "t5"
    assert Checkpoints.open_read_only(directory.checkpoints_dir).steps() == [0]
    _, setting, state = load_run(run)
    interface = setting.task.interface
    assert (interface.pad_id, interface.bos_id, interface.eos_id) == (0, 0, 1)
    shapes = jax.tree.map(lambda leaf: leaf.shape, setting.model.functional.shapes())
    assert jax.tree.map(lambda leaf: leaf.shape, state.variables.params) == shapes
    assert call(convert, f"--workdir={run}", f"--save_pretrained={tmp_path / 'out'}") == 0
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (written["decoder_start_token_id"], written["pad_token_id"], written["eos_token_id"]) == (0, 0, 1)
    capsys.readouterr()


def test_exactly_one_direction_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "needs --from_pretrained=VALUE or --save_pretrained=VALUE" in refusal(capsys, f"--workdir={tmp_path}")
    assert "--from_pretrained has no effect on --save_pretrained: omit one of them" in refusal(
        capsys, f"--workdir={tmp_path}", "--from_pretrained=a", "--save_pretrained=b"
    )
    assert "--steps=3 needs --from_pretrained" in refusal(
        capsys, f"--workdir={tmp_path}", "--save_pretrained=b", "--steps=3"
    )
    assert "--step=3 needs --save_pretrained" in refusal(
        capsys, f"--workdir={tmp_path}", "--from_pretrained=a", "--step=3"
    )
    assert "is missing" in refusal(capsys, f"--workdir={tmp_path / 'absent'}", f"--save_pretrained={tmp_path / 'b'}")
    assert "--classes=yes,,no has an empty label: write each between commas, as yes,no" in refusal(
        capsys, f"--workdir={tmp_path}", "--from_pretrained=a", "--classes=yes,,no"
    )


def test_a_directory_that_holds_something_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = publish("gpt2", tmp_path / "in")
    said = refusal(capsys, f"--from_pretrained={source}", f"--workdir={source}")
    assert "exists and is not empty; name a new directory" in said


def test_a_refused_start_leaves_no_run(tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, run = publish("gpt2", tmp_path / "in"), tmp_path / "run"
    assert refusal(capsys, f"--from_pretrained={source}", f"--workdir={run}", f"--dataset={tmp_path / 'absent.txt'}")
    assert not run.exists()
    assert "--batch_size=0" in refusal(capsys, f"--from_pretrained={source}", f"--workdir={run}", "--batch_size=0")
    words = (f"--dataset={data}", "--context_length=12", "--batch_size=2")
    assert call(convert, f"--from_pretrained={source}", f"--workdir={run}", *words) == 0


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = publish("gpt2", tmp_path / "in")
    backend = tokenizers.Tokenizer.from_file(str(source / "tokenizer.json"))
    backend.add_tokens([f"more{number}" for number in range(30)])
    backend.save(str(source / "tokenizer.json"))
    said = refusal(capsys, f"--from_pretrained={source}", f"--workdir={tmp_path / 'run'}")
    assert "more than the model's vocab_size=53" in said


def test_a_run_needs_no_config_once_it_has_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(train, f"--workdir={tmp_path}") == 2
    assert "holds no run to resume" in capsys.readouterr().err
    (tmp_path / "config.json").write_text("[")
    assert call(train, f"--workdir={tmp_path}") == 2
    assert "config.json is not what a run writes" in capsys.readouterr().err


SENTENCES = "".join(f"cat{number} B-X\nsits O\n\n" for number in range(60))
QUESTIONS = "".join(
    json.dumps(
        {
            "question": f"who sits {number}",
            "context": f"the cat {number} sits",
            "answers": {"text": ["cat"], "answer_start": [4]},
        }
    )
    + "\n"
    for number in range(60)
)
WORD_TASKS = {
    "bert_tokens": ("words.conll", SENTENCES, ("--classes=O,B-X,I-X",), "token_classification", "classifier.weight"),
    "bert_span": ("questions.jsonl", QUESTIONS, (), "question_answering", "qa_outputs.weight"),
}
WORD_TASKS |= {name.replace("bert", "xlnet"): given for name, given in WORD_TASKS.items()}


@pytest.mark.parametrize(
    "name",
    ["bert_tokens", *(pytest.param(name, marks=pytest.mark.slow) for name in WORD_TASKS if name != "bert_tokens")],
)
def test_a_published_model_of_words_keeps_its_head(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, content, flags, task, head = WORD_TASKS[name]
    (tmp_path / file).write_text(content)
    source, run = publish(name.split("_")[0], tmp_path / "in", CLASSIFIERS), tmp_path / "run"
    recording(name, CLASSIFIERS).write(source)
    if flags:
        config = json.loads((source / "config.json").read_text()) | {"id2label": {"0": "O", "1": "B-X", "2": "I-X"}}
        (source / "config.json").write_text(json.dumps(config))
    words = (f"--from_pretrained={source}", f"--workdir={run}", f"--dataset={tmp_path / file}", *flags)
    assert call(convert, *words, "--context_length=24", "--batch_size=8", "--steps=1") == 0
    said = capsys.readouterr().out
    assert f"at step 0, task {task}" in said
    assert "randomly" not in said
    _, _, state = load_run(run)
    name_of_ours = "span" if name.endswith("span") else "classes"
    kernel = np.asarray(state.variables.params[name_of_ours]["kernel"])
    np.testing.assert_array_equal(kernel, load_file(source / "model.safetensors")[head].T)


@pytest.mark.slow
@pytest.mark.parametrize("name", WORD_TASKS)
def test_any_pre_trained_model_learns_about_words_and_goes_out(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, content, flags, task, head = WORD_TASKS[name]
    (tmp_path / file).write_text(content)
    source, run = pre_trained(name.split("_")[0], tmp_path / "in"), tmp_path / "run"
    words = (f"--from_pretrained={source}", f"--workdir={run}", f"--dataset={tmp_path / file}", *flags)
    assert call(convert, *words, f"--problem={task}", "--context_length=24", "--batch_size=8", "--steps=1") == 0
    assert "initialized randomly" in capsys.readouterr().out
    assert call(train, f"--workdir={run}", "--config.maps_every=1") == 0
    text = "cat3 sits" if name.endswith("tokens") else "who sits 3 $ the cat 3 sits"
    capsys.readouterr()
    assert call(generate, f"--workdir={run}", f"--text={text}") == 0
    assert capsys.readouterr().out.strip()
    assert call(convert, f"--workdir={run}", f"--save_pretrained={tmp_path / 'out'}") == 0
    written, config = (
        load_file(tmp_path / "out/model.safetensors"),
        json.loads((tmp_path / "out/config.json").read_text()),
    )
    assert head in written
    assert config["architectures"] == [recording(name, CLASSIFIERS).about["architecture"]]
    if flags:
        assert config["id2label"] == {"0": "O", "1": "B-X", "2": "I-X"}


@pytest.mark.parametrize(
    ("case", "problem", "text"),
    [
        pytest.param("gpt2/classes", "entailment", "2 cats $ 4 cats", marks=pytest.mark.slow),
        pytest.param("llama/classes", "classification", "2 cats", marks=pytest.mark.slow),
        pytest.param("bart/classes", "entailment", "2 cats $ 4 cats", marks=pytest.mark.slow),
        pytest.param("t5/classes", "classification", "2 cats", marks=pytest.mark.slow),
        pytest.param("t5/span", "question_answering", "who sits $ the cat sits", marks=pytest.mark.slow),
        pytest.param("mt5/token_classes", "token_classification", "cats sit", marks=pytest.mark.slow),
        pytest.param("bert/choice", "choice", "cats $ sit $ run", marks=pytest.mark.slow),
        pytest.param("electra/choice", "choice", "cats $ sit $ run", marks=pytest.mark.slow),
        # Which a Llama could be, too.
        pytest.param("mistral/token_classes", "token_classification", "cats sit", marks=pytest.mark.slow),
        pytest.param("llama/span", "question_answering", "who sits $ the cat sits", marks=pytest.mark.slow),
    ],
)
def test_a_head_of_a_decoder_comes_in_answers_and_goes_out(
    case: str, problem: str, text: str, pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, run, out = publish_head(case, tmp_path / "in"), tmp_path / "run", tmp_path / "out"
    dataset, length = pairs, "--context_length=20"
    if problem == "token_classification":
        dataset = tmp_path / "words.conll"
        dataset.write_text("\n\n".join(f"w{number} {('no', 'perhaps', 'yes')[number % 3]}" for number in range(80)))
    elif problem == "question_answering":
        dataset, length = tmp_path / "questions.jsonl", "--context_length=40"
        dataset.write_text(QUESTIONS)
    words = (f"--from_pretrained={source}", f"--workdir={run}", f"--dataset={dataset}", f"--problem={problem}")
    if problem == "choice":
        rows = (f"w{number}\tsit\trun\t{('one', 'other')[number % 2]}" for number in range(80))
        dataset.write_text("\n".join(["context\tone\tother\tlabel", *rows]))
        words = (*words, "--classes=one,other")
    assert call(convert, *words, length, "--batch_size=8", "--steps=1") == 0
    said = capsys.readouterr().out
    assert "randomly" not in said
    task = problem if problem in ("token_classification", "question_answering") else "fine_tuning"
    assert f"at step 0, task {task}" in said
    setting = RunDirectory.open(run).config()["task"]
    of_decoders = "roberta" if problem == "question_answering" else "plain"
    formats = {"bart": "bart", "t5": "t5", "mt5": "t5", "bert": "bert", "electra": "bert"}
    assert setting["sequence_format"] == formats.get(case.partition("/")[0], of_decoders)
    assert call(generate, f"--workdir={run}", f"--text={text}") == 0
    assert call(convert, f"--workdir={run}", f"--save_pretrained={out}") == 0
    written, read = load_file(out / "model.safetensors"), load_file(source / "model.safetensors")
    assert {key: value.tobytes() for key, value in written.items()} == {k: v.tobytes() for k, v in read.items()}
    theirs, ours = (json.loads((folder / "config.json").read_text()) for folder in (source, out))
    assert ours["architectures"] == theirs["architectures"]
    assert ours.get("id2label") == theirs.get("id2label")
    capsys.readouterr()


@pytest.mark.slow
def test_a_classifier_that_was_a_body_trains(pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, run, out = publish_head("llama/none", tmp_path / "in"), tmp_path / "run", tmp_path / "out"
    words = (f"--from_pretrained={source}", f"--workdir={run}", f"--dataset={pairs}", "--problem=entailment")
    assert call(convert, *words, "--classes=no,perhaps,yes", "--context_length=20", "--batch_size=8", "--steps=1") == 0
    assert "  initialized randomly: classes\n" in capsys.readouterr().out
    assert call(train, f"--workdir={run}", "--config.maps_every=0") == 0
    assert call(convert, f"--workdir={run}", f"--save_pretrained={out}") == 0
    config = json.loads((out / "config.json").read_text())
    assert config["architectures"] == ["LlamaForSequenceClassification"]
    assert config["problem_type"] == "single_label_classification"
    capsys.readouterr()


@pytest.mark.parametrize(
    ("case", "fresh", "task", "architecture"),
    [
        ("llama/none", "unembedding", "language_modeling", "LlamaForCausalLM"),
        pytest.param("xlnet/none", "output_bias", "permutation_lm", "XLNetLMHeadModel", marks=pytest.mark.slow),
        pytest.param("bert/none", "head, output_bias", "masked_lm", "BertForMaskedLM", marks=pytest.mark.slow),
    ],
)
def test_a_body_is_pre_trained_further_with_a_new_head(
    case: str, fresh: str, task: str, architecture: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, run, out = publish_head(case, tmp_path / "in"), tmp_path / "run", tmp_path / "out"
    words = (f"--from_pretrained={source}", f"--workdir={run}", f"--dataset={data}", "--context_length=12")
    assert call(convert, *words, "--batch_size=2") == 0
    said = capsys.readouterr().out
    assert f"at step 0, task {task}" in said
    assert f"  initialized randomly: {fresh}\n" in said
    # Without a run it has maps all the same.
    assert load(source).run_with_maps("the fox")
    assert call(convert, f"--workdir={run}", f"--save_pretrained={out}") == 0
    assert json.loads((out / "config.json").read_text())["architectures"] == [architecture]
    capsys.readouterr()
