"""ViT and DeiT with the weights of an independent implementation give its logits and maps, and go in and out."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import transformer
from tests import programs
from tests.golden.recordings import head_recording
from tests.golden.weights import random_weights
from transformer.attention import Capture
from transformer.config import UserError
from transformer.data.datasets.image_files import decode_image
from transformer.data.images import Normalization
from transformer.huggingface.convert import CONVERSIONS, open_model_folder, write_model_folder
from transformer.huggingface.preprocessor import convert_preprocessor_config, preprocessor_config
from transformer.layers.functional_module import Precision
from transformer.models.model import Variables
from transformer.models.registry import build, model_config
from transformer.tasks.registry import task_config
from transformer.training.huggingface_conversion import (
    FineTuningOptions,
    export_to_huggingface,
    import_from_huggingface,
)

CASES = sorted(path.stem for path in Path(__file__).with_name("images").glob("*.npz"))
QUICK = ("vit", "deit", "dinov2", "siglip_vision_model")
QUICK_OR_SLOW = [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in CASES]


def recorded(name: str, folder: Path, **changes: Any) -> dict[str, np.ndarray]:
    """A folder as Hugging Face would publish it, and what was recorded of it."""
    with np.load(Path(__file__).with_name("images") / f"{name}.npz") as file:
        arrays = {key: file[key] for key in file.files}
    about = json.loads(str(arrays.pop("about")))
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(about["config"] | changes))
    shapes = {key: tuple(shape) for key, shape in about["shapes"].items()}
    save_file(random_weights(shapes, about["seed"]), folder / "model.safetensors", {"format": "pt"})
    return arrays


@pytest.mark.parametrize("name", QUICK_OR_SLOW)
def test_logits_and_maps_are_those_recorded(name: str, tmp_path: Path) -> None:
    arrays = recorded(name, tmp_path / "in")
    foreign = open_model_folder(tmp_path / "in")
    model = build(model_config(foreign.model), foreign.interface, Precision())
    image = {"image": arrays["picture"].transpose(0, 2, 3, 1)}
    sites = ("encoder/self", "pooling") if "pooling" in arrays else ("encoder/self",)
    assert tuple(site.name for site in model.sites) == sites
    with jax.default_matmul_precision("highest"), jax.disable_jit():
        outputs, aux = model.apply(
            Variables(foreign.read_params(), {}), image, train=False, capture=Capture(sites=sites)
        )
    np.testing.assert_allclose(outputs, arrays.get("logits", arrays.get("hidden")), rtol=0, atol=1e-4)
    np.testing.assert_allclose(aux.maps["encoder/self"].weights, arrays["attention"], rtol=0, atol=1e-5)
    if "pooling" in arrays:
        np.testing.assert_allclose(aux.maps["pooling"].weights[0], arrays["pooling"], rtol=0, atol=1e-5)
    if "pooled" in arrays:
        # DINOv2's is the class token's state, which is among the outputs.
        pooled = outputs[:, 0] if name == "dinov2_body" else aux.extras["pooled"]
        np.testing.assert_allclose(pooled, arrays["pooled"], rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "name", ["dinov2", *(pytest.param(name, marks=pytest.mark.slow) for name in ("siglip", "clip"))]
)
def test_a_step_of_training_has_the_losses_recorded(name: str, tmp_path: Path) -> None:
    arrays = recorded(name, tmp_path / "in")
    foreign = open_model_folder(tmp_path / "in")
    model = build(model_config(foreign.model), foreign.interface, Precision())
    image = {"image": arrays["picture"].transpose(0, 2, 3, 1)}

    def loss(params: Any) -> jax.Array:
        logits, _ = model.apply(Variables(params, {}), image, train=False)
        return -jnp.mean(jax.nn.log_softmax(logits)[jnp.arange(2), jnp.arange(2)])

    with jax.default_matmul_precision("highest"):
        params = foreign.read_params()
        first, gradient = jax.jit(jax.value_and_grad(loss))(params)
        second = jax.jit(loss)(jax.tree.map(lambda value, slope: value - 0.01 * slope, params, gradient))
    np.testing.assert_allclose([first, second], arrays["losses"], rtol=0, atol=1e-5)
    assert abs(first - second) > 0.1


# What no class reads is left out of a model, and written as what its class begins with, or not at all.
UNREAD = r".*(mask_token|vision_model\.head\..*)"


@pytest.mark.parametrize("name", CASES)
def test_a_round_trip_is_the_same_in_every_bit(name: str, tmp_path: Path) -> None:
    recorded(name, tmp_path / "in")
    foreign = open_model_folder(tmp_path / "in")
    model_type = foreign.config["model_type"]
    write_model_folder(tmp_path / "out", model_config(foreign.model), foreign.read_params(), model_type=model_type)
    before, after = (load_file(tmp_path / side / "model.safetensors") for side in ("in", "out"))
    prefix = CONVERSIONS[model_type].optional_prefix
    before = {key if key in after else prefix + key: value for key, value in before.items()}
    if name == "clip":
        for key in ("weight", "bias"):
            before.pop(f"vision_model.post_layernorm.{key}"), after.pop(f"vision_model.post_layernorm.{key}")
    elif name != "siglip_vision_model":
        before = {key: value for key, value in before.items() if not re.fullmatch(UNREAD, key)}
    assert before.keys() == after.keys()
    for key, tensor in before.items():
        np.testing.assert_array_equal(after[key], tensor)
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written["architectures"] == foreign.config["architectures"]
    again = open_model_folder(tmp_path / "out")
    assert (again.model, again.interface) == (foreign.model, foreign.interface)


def test_a_published_model_looks_at_a_file(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    arrays = recorded("vit", tmp_path / "in")
    # As ImageNet's means and deviations would: the numbers that were recorded are those that the model reads.
    (tmp_path / "in" / "preprocessor_config.json").write_text(
        json.dumps({"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.3, 0.4]})
    )
    pixels = np.random.default_rng(0).integers(0, 256, (12, 12, 3)).astype(np.uint8)
    image.fromarray(pixels).save(tmp_path / "one.png")
    loaded = transformer.load(tmp_path / "in")
    maps = loaded.run_with_maps(str(tmp_path / "one.png"))
    read = (pixels / 255 - [0.4, 0.5, 0.6]) / [0.2, 0.3, 0.4]
    capture = Capture(sites=("encoder/self",))
    inputs = {"image": read[None].astype(np.float32)}
    _, aux = programs.apply(loaded.model, loaded.variables, inputs, train=False, capture=capture)
    np.testing.assert_allclose(np.asarray(maps["encoder/self"][1]), aux.maps["encoder/self"].weights[1], atol=1e-5)
    assert arrays["attention"].shape[-1] == 10
    page = loaded.show_attention(str(tmp_path / "one.png"), page=tmp_path / "page.html")
    assert page.path.stat().st_size > 10_000
    with pytest.raises(UserError, match="is no file: name a JPEG or PNG"):
        loaded.show_attention("a sentence")


def test_a_published_model_becomes_a_run_and_is_published_again(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    recorded("vit", tmp_path / "in")
    for split in ("train", "validation", "test"):
        for label in ("cat", "dog"):
            (tmp_path / "pets" / split / label).mkdir(parents=True)
            pixels = np.full((12, 12, 3), 90 if label == "cat" else 160, np.uint8)
            image.fromarray(pixels).save(tmp_path / "pets" / split / label / "0.png")
    with pytest.raises(UserError, match="give --dataset=FOLDER"):
        import_from_huggingface(tmp_path / "in", tmp_path / "run", FineTuningOptions())
    fine_tuning = FineTuningOptions(dataset="pets", data_dir=str(tmp_path), batch_size=2, steps=1)
    converted = import_from_huggingface(tmp_path / "in", tmp_path / "run", fine_tuning)
    assert converted.notes == (
        "no preprocessor_config.json: images are resized and normalized as its defaults would have it",
        "the head begins anew: the data's 2 classes are not those of the folder",
        "initialized randomly: head",
    )
    published = export_to_huggingface(tmp_path / "run", tmp_path / "out")
    assert published.kind == "vit"
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["id2label"] == {"0": "cat", "1": "dog"}
    before, after = (load_file(tmp_path / side / "model.safetensors") for side in ("in", "out"))
    assert after["classifier.weight"].shape == (2, 16)
    for key in before.keys() - {"classifier.weight", "classifier.bias"}:
        np.testing.assert_array_equal(after[key], before[key])
    said = json.loads((tmp_path / "out" / "preprocessor_config.json").read_text())
    assert (said["size"], said["image_mean"]) == ({"height": 12, "width": 12}, [0.5] * 3)
    assert (said["image_processor_type"], said["do_center_crop"]) == ("ViTImageProcessor", False)


def test_a_body_has_maps_and_becomes_a_run_with_a_new_head(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    head_recording("vit/none").write(tmp_path / "in")
    for split in ("train", "validation", "test"):
        for label in ("cat", "dog"):
            (tmp_path / "pets" / split / label).mkdir(parents=True)
            pixels = np.full((12, 12, 3), 90 if label == "cat" else 160, np.uint8)
            image.fromarray(pixels).save(tmp_path / "pets" / split / label / "0.png")
    maps = transformer.load(tmp_path / "in").run_with_maps(str(tmp_path / "pets" / "train" / "cat" / "0.png"))
    assert maps["encoder/self"][0].shape[-1] == 10
    fine_tuning = FineTuningOptions(dataset="pets", data_dir=str(tmp_path), batch_size=2, steps=1)
    converted = import_from_huggingface(tmp_path / "in", tmp_path / "run", fine_tuning)
    assert converted.notes[-1] == "initialized randomly: head"
    export_to_huggingface(tmp_path / "run", tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["architectures"] == ["ViTForImageClassification"]
    model = model_config({**open_model_folder(tmp_path / "in").model})
    with pytest.raises(UserError, match="add_pooling_layer=True is not read by a model with classes"):
        build(model, open_model_folder(tmp_path / "out").interface, Precision())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("dinov2_body", "Dinov2ForImageClassification"),
        ("siglip_headless", "SiglipForImageClassification"),
        ("clip", "CLIPForImageClassification"),
        ("siglip_vision_model", "config.model.pooling=attention is not class_token"),
        ("clip_vision_model", "a tower alone has no head of classes"),
    ],
)
def test_a_tower_becomes_a_run_that_is_published_if_a_class_has_its_head(
    name: str, written: str, tmp_path: Path
) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    recorded(name, tmp_path / "in")
    for split in ("train", "validation", "test"):
        for label in ("cat", "dog"):
            (tmp_path / "pets" / split / label).mkdir(parents=True)
            pixels = np.full((12, 14, 3), 90 if label == "cat" else 160, np.uint8)
            image.fromarray(pixels).save(tmp_path / "pets" / split / label / "0.png")
    fine_tuning = FineTuningOptions(dataset="pets", data_dir=str(tmp_path), batch_size=2, steps=1)
    converted = import_from_huggingface(tmp_path / "in", tmp_path / "run", fine_tuning)
    assert converted.notes[-1] == "initialized randomly: head"
    if "For" not in written:
        with pytest.raises(UserError, match=written):
            export_to_huggingface(tmp_path / "run", tmp_path / "out")
        return
    export_to_huggingface(tmp_path / "run", tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["architectures"] == [written]
    again = open_model_folder(tmp_path / "out")
    before = open_model_folder(tmp_path / "in").preprocessing
    # One number for all channels is written as three.
    mean = (before["normalization"]["mean"] * 3)[:3]
    assert again.preprocessing | {"normalization": 0} == before | {"normalization": 0}
    assert again.preprocessing["normalization"]["mean"] == mean
    assert again.interface.vocabularies == {"classes": 2}


DEIT = {
    "image_processor_type": "DeiTImageProcessor",
    "do_resize": True,
    "size": {"height": 16, "width": 16},
    "resample": 3,
    "do_center_crop": True,
    "crop_size": {"height": 12, "width": 12},
    "do_rescale": True,
    "rescale_factor": 0.00392156862745098,
    "do_normalize": True,
    "image_mean": [0.485],
    "image_std": [0.229],
}


def test_a_file_is_resized_cropped_and_normalized_as_the_folder_says(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    recorded("deit", tmp_path / "in")
    image = image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 31)).astype(np.uint8))
    image.save(tmp_path / "one.png")
    by_its_keys = (np.asarray(image.resize((16, 16), 3))[2:14, 2:14] / 255 - 0.485) / 0.229
    raw = np.asarray(image.resize((12, 12), 1)) / 255
    # As older files write the same, and with keys that they leave to the kind of processor.
    older = {"feature_extractor_type": "DeiTFeatureExtractor", "size": 16, "crop_size": 12, "image_mean": [0.485]}
    others = {"do_normalize": False, "do_center_crop": False, "resample": 1, "size": 12}
    for said, expected in ((DEIT, by_its_keys), (older | {"image_std": 0.229}, by_its_keys), (DEIT | others, raw)):
        (tmp_path / "in" / "preprocessor_config.json").write_text(json.dumps(said))
        loaded = transformer.load(tmp_path / "in")
        maps = loaded.run_with_maps(str(tmp_path / "one.png"))
        capture, inputs = Capture(sites=("encoder/self",)), {"image": expected[None, ..., None].astype(np.float32)}
        _, aux = programs.apply(loaded.model, loaded.variables, inputs, train=False, capture=capture)
        np.testing.assert_allclose(np.asarray(maps["encoder/self"][1]), aux.maps["encoder/self"].weights[1], atol=1e-5)


CLIP = {
    "image_processor_type": "CLIPImageProcessor",
    "size": {"shortest_edge": 16},
    "crop_size": {"height": 12, "width": 12},
    "resample": 3,
}


def test_the_shorter_edge_is_resized_and_the_middle_cropped_as_clip_does(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    recorded("clip", tmp_path / "in")
    image = image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 31, 3)).astype(np.uint8))
    image.save(tmp_path / "one.png")
    # 31 x 16 / 20 = 24.8 pixels, of which the columns from (24 - 12) / 2 on are kept.
    middle = np.asarray(image.resize((24, 16), 3))[2:14, 6:18] / 255
    mean, deviation = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
    older = {"feature_extractor_type": "CLIPFeatureExtractor", "size": 16, "crop_size": 12}
    for said in (CLIP, older, CLIP | {"image_mean": [0.5] * 3, "image_std": [0.25] * 3}):
        (tmp_path / "in" / "preprocessor_config.json").write_text(json.dumps(said))
        foreign = open_model_folder(tmp_path / "in")
        task = task_config({"name": "image_classification", "dataset": "pets", **foreign.preprocessing})
        expected = (middle - said.get("image_mean", mean)) / said.get("image_std", deviation)
        found = task.normalization(decode_image((tmp_path / "one.png").read_bytes(), "x", task.resizing))
        np.testing.assert_allclose(found, expected, atol=1e-5)
        again = convert_preprocessor_config(preprocessor_config("clip", 12, task, 3), "clip", 12)
        assert again == foreign.preprocessing
    wrong = CLIP | {"do_center_crop": False}
    (tmp_path / "in" / "preprocessor_config.json").write_text(json.dumps(wrong))
    with pytest.raises(UserError, match=r"has size={'shortest_edge': 16}, which leaves images of all"):
        open_model_folder(tmp_path / "in")


@pytest.mark.parametrize(
    "wrong",
    [
        {"image_processor_type": "LevitImageProcessor"},
        {"size": {"longest_edge": 16}},
        {"size": {"shortest_edge": 8}},
        {"size": {"shortest_edge": 16, "longest_edge": 32}},
        {"size": {"height": 8, "width": 8}},
        {"crop_size": 11},
        {"resample": 7},
        {"do_resize": False},
        {"do_rescale": False},
        {"rescale_factor": 1.0},
        {"image_mean": ["a"]},
        {"crop_pct": 0.9},
        {"do_pad": True},
    ],
)
def test_a_way_of_reading_files_that_ours_is_not_is_refused_by_its_key(wrong: dict, tmp_path: Path) -> None:
    recorded("deit", tmp_path / "in")
    (tmp_path / "in" / "preprocessor_config.json").write_text(json.dumps(DEIT | wrong))
    (key,) = wrong
    with pytest.raises(UserError, match=f"preprocessor_config.json has {key}=") as told:
        open_model_folder(tmp_path / "in")
    assert "\n" not in str(told.value)


def test_what_is_written_is_read_as_the_task_that_it_was(tmp_path: Path) -> None:
    for values in (
        {"image_size": 12},
        {"image_size": 12, "resize_side": 16, "resample": "bicubic"},
        {"image_size": 12, "resize_shape": "proportional"},
        {"image_size": 12, "resize_side": 16, "resize_shape": "proportional"},
    ):
        task = task_config({"name": "image_classification", "dataset": "pets", **values})
        said = preprocessor_config("vit", 12, task, 3)
        read = convert_preprocessor_config(said, "vit", 12)
        assert task_config({"name": "image_classification", "dataset": "pets", **read}) == dataclasses.replace(
            task, normalization=Normalization((0.5,) * 3, (0.5,) * 3)
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"qkv_bias": False}, "qkv_bias=False"),
        ({"image_size": [12, 8]}, "only square images"),
        ({"patch_size": 6}, "has the shape"),
        (
            {"architectures": ["DeiTForImageClassification"], "model_type": "deit"},
            "which has one head of classes; of deit",
        ),
    ],
)
def test_what_no_model_expresses_is_refused(changes: dict, message: str, tmp_path: Path) -> None:
    recorded("vit", tmp_path / "in", **changes)
    with pytest.raises(UserError, match=message):
        open_model_folder(tmp_path / "in")
