"""C-41: text, images and speech are one problem for a Transformer."""

from experiments.claims.claim import Claim, Figures, Finding, Measurement, Verdict
from experiments.claims.exhibits import Table

SIZES = {"width": 64, "heads": 4, "feed_forward": 128, "norm_placement": "pre", "biases": "all"}
# The stack that reads the input, by model.
STACKS = {"causal text": "layers", "text": "layers", "image": "layers", "speech": "encoder"}


def measure() -> Figures:
    """Build models of text, images and speech, and compare the classes and the parameters of their blocks."""
    from flax import nnx

    from transformer.layers.functional_module import Precision
    from transformer.layers.transformer_block import Block
    from transformer.models.model import count_parameters, leaves_by_path
    from transformer.models.registry import build, model_config
    from transformer.models.task_interface import InputSpec, Modality, TaskInterface

    text = TaskInterface({"tokens": InputSpec((1, 16))}, {"tokens": 100})
    image = TaskInterface({"image": InputSpec((1, 28, 28, 1), modality=Modality.IMAGE)}, {"classes": 10})
    sound = {"sound": InputSpec((1, 4000), modality=Modality.AUDIO), "lengths": InputSpec((1,))}
    speech = TaskInterface({**sound, "target": InputSpec((1, 8))}, {"joint": 30}, pad_id=0, bos_id=1, eos_id=2)
    # Listed by name: projects do not import each other, configs name them.
    speech_family = "experiments.speech.speech_transformer"
    models = {
        "causal text": ({"family": "decoder", "layers": 2, "max_length": 64}, text),
        "text": ({"family": "encoder", "layers": 2, "max_length": 64}, text),
        "image": ({"family": "vit", "layers": 2, "patch_size": 4}, image),
        "speech": (
            {"family": speech_family, "encoder_layers": 2, "decoder_layers": 1, "channels": 64, "max_length": 64},
            speech,
        ),
    }
    rows, stacks = [], {}
    for name, (section, interface) in models.items():
        model = build(model_config({**SIZES, **section}), interface, Precision())
        shapes = model.shapes().params
        module = model.functional.bind(shapes)
        blocks = {path[0]: node for path, node in nnx.iter_modules(module) if isinstance(node, Block)}
        block_class = type(blocks[STACKS[name]])
        stacks[name] = {path: leaf.shape for path, leaf in leaves_by_path(shapes[STACKS[name]]).items()}
        in_blocks = sum(count_parameters(shapes[stack]) for stack in blocks)
        rows.append(
            {
                "input": name,
                "block": f"{block_class.__module__}.{block_class.__qualname__}",
                "in_blocks": in_blocks,
                "elsewhere": count_parameters(shapes) - in_blocks,
            }
        )
    return {"rows": rows, "equal_parameters": all(stack == stacks["text"] for stack in stacks.values())}


def judge(figures: Figures) -> Finding:
    """It holds if one class with parameters of equal shapes serves every kind of input."""
    rows = figures["rows"]
    classes = {row["block"] for row in rows}
    equal = "all parameters equal in shape" if figures["equal_parameters"] else "parameters of other shapes"
    reason = (
        f"Models of {', '.join(row['input'] for row in rows)} are stacks of {len(classes)} class of block with "
        f"{equal}. What differs makes vectors of the input and reads the output: an embedding, a projection of "
        "patches, or convolutions of frames."
    )
    return Finding(Verdict.HOLDS if len(classes) == 1 and figures["equal_parameters"] else Verdict.FAILS, reason)


def exhibits(figures: Figures) -> tuple[Table, ...]:
    """Show the parameters within and outside of blocks."""
    return (
        Table(
            caption="Two layers of width 64 over each kind of input (speech: and a decoder of one layer)",
            columns=("input", "class of blocks", "parameters in blocks", "elsewhere"),
            rows=[
                (row["input"], row["block"].rsplit(".", 1)[-1], f"{row['in_blocks']:,}", f"{row['elsewhere']:,}")
                for row in figures["rows"]
            ],
        ),
    )


CLAIM = Claim(
    number=41,
    title="Sequences and images are similar problems",
    sentence="To a Transformer a text, an image and a sound are the same: a set of vectors with positions, so that one "
    "architecture serves them all.",
    lectures=("S2",),
    source="Dosovitskiy et al. 2021, section 3.1; Dong et al. 2018",
    refutation="The models of text, images and speech have blocks of different classes, or with parameters of "
    "different shapes at equal sizes.",
    evidence=Measurement(measure=measure, seconds=5),
    judge=judge,
    exhibits=exhibits,
)
