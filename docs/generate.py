"""Write the generated pages of docs/: projects, results and metrics, attention backends, Hugging Face types."""

import posixpath
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from experiments.records import CHECKOUT, Record, list_records, names_processor_family, read_record
from launch.cli import run
from launch.command import Arguments, Command
from transformer.config import UserError

# The pages of results: their titles, and the projects on them.
TOPICS = {
    "ablations": ("Ablations of the Transformer", ("ablations",)),
    "translation": ("Translation", ("translation",)),
    "language": (
        "Language",
        (
            "language_modeling",
            "masked_lm",
            "glue",
            "lora",
            "text_retrieval",
            "summarization",
            "news_articles",
            "dialogue",
        ),
    ),
    "mechanisms": (
        "What heads learn",
        ("kernel_regression", "attention_probes", "induction_heads", "in_context_learning"),
    ),
    "vision": (
        "Vision",
        (
            "image_classification",
            "captioning",
            "visual_question_answering",
            "scene_text",
            "sagan",
            "point_clouds",
        ),
    ),
    "speech": ("Speech", ("speech",)),
    "algorithms": ("Algorithms and memory", ("neural_turing_machine", "pointer_networks", "graphs", "few_shot")),
    "agents": ("Agents", ("handshake_rl", "meta_rl", "instruction_following")),
    "speed": ("Speed and memory", ("benchmarks", "pods")),
    "lectures": ("Claims of lectures", ("claims",)),
}
COMMAND = Command(
    name="generate",
    package="docs",
    description=(
        "Write the generated pages of docs/: the projects and the results of each topic, from experiments/*/README.md, "
        "the support table of the attention backends, all metrics, and the tables of Hugging Face models. `make docs` "
        "also builds the site."
    ),
    example="",
    arguments=Arguments,
)
DOCS = Path(__file__).resolve().parent
_LINK = re.compile(r"\]\((?!\w+:|#)([^)\s]+)\)")
_RESULTS = """# Results

Every number comes from a record of a run. Each row links its record, which has the command, the commit, the hardware
and the details. (The row on predicted memory links a guide instead.) A test checks that each number in a row is in the
record that the row links.

- `0.984 ± 0.003 (3 seeds)` is the mean and the standard deviation over seeds.
- `1.658 ± 0.069 (95% CI)` is the mean and half the width of its confidence interval.
- A number without ± is from one run, with seed 1 unless the text says otherwise.

Of the {num_records} records with a command, {num_unnamed} don't name the family of the processor. Another processor
rounds sums otherwise, so if you train their runs again, expect numbers within the spread of the seeds, not equal ones.

| project | topic |
| --- | --- |
"""
_TOPIC = """# {title}

How to read the numbers: [Results](../results.md).
"""
_PROJECTS = """# Projects

A project is a folder under [experiments](../experiments). Its README has the commands, the configs, the time and
hardware, the model, and the results. Start with the demo, [experiments/demo.py](../experiments/demo.py): `make demo`.
[Results](results.md) has all results by topic.
"""
_SENTENCE = re.compile(r".*?\.(?= [A-Z]|$)")


class Readme(NamedTuple):
    """The README of a project.

    Attributes:
        project: The name of its folder.
        title: Its title.
        summary: Its first paragraph.
        results: Its section "Results".
        has_metrics: Whether it defines metrics of its own, in a section "Metrics".
    """

    project: str
    title: str
    summary: str
    results: str
    has_metrics: bool


def read_readme(folder: Path) -> Readme:
    """Read the README of a project's folder.

    Raises:
        UserError: If it has no title, no paragraph below the title, or no results.
    """
    text = (folder / "README.md").read_text(encoding="utf-8")
    head = re.match(r"# (.+)\n\n((?:.+\n)+)", text)
    results = re.search(r"^## Results\n\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    if head is None or results is None:
        raise UserError(f"{folder / 'README.md'} must begin with a title and a paragraph, and have '## Results'")
    return Readme(folder.name, head[1], " ".join(head[2].split()), results[1].rstrip(), "\n## Metrics\n" in text)


def topic_page(topic: str, readmes: Mapping[str, Readme]) -> str:
    """Return the page with the results of a topic's projects."""
    title, projects = TOPICS[topic]
    sections = [
        f"## {readme.title}\n\n"
        f"Project: [experiments/{readme.project}](../../experiments/{readme.project}/README.md)\n\n"
        f"{_rewrite_links(readme.results, readme.project, 'docs/results')}\n"
        for readme in (readmes[project] for project in projects)
    ]
    return "\n".join([_TOPIC.format(title=title), *sections])


def results_index_page(readmes: Mapping[str, Readme], records: Sequence[Record]) -> str:
    """Return the table of the topics and their projects, below what the records leave open."""
    with_commands = [record for record in records if record.runs]
    unnamed = sum(not names_processor_family(record) for record in with_commands)
    rows = []
    for topic, (title, projects) in TOPICS.items():
        for readme in (readmes[project] for project in projects):
            anchor = re.sub(r"[^\w -]", "", readme.title.lower()).replace(" ", "-")
            rows.append(f"| [{readme.title}](results/{topic}.md#{anchor}) | {title} |\n")
    return _RESULTS.format(num_records=len(with_commands), num_unnamed=unnamed) + "".join(rows)


def projects_page(readmes: Mapping[str, Readme]) -> str:
    """Return the list of projects by topic, with the first sentence of each README."""
    sections = [_PROJECTS]
    for title, projects in TOPICS.values():
        items = []
        for readme in (readmes[project] for project in projects):
            summary = _rewrite_links(readme.summary, readme.project, "docs")
            sentence = _SENTENCE.match(summary)
            first = sentence[0] if sentence else summary
            items.append(f"- [{readme.title}](../experiments/{readme.project}/README.md): {first}\n")
        sections.append(f"## {title}\n\n{''.join(items)}")
    return "\n".join(sections)


def _rewrite_links(text: str, project: str, folder: str) -> str:
    """Rewrite the relative links of a project's README for a page in `folder`."""

    def relocate_link(link: re.Match[str]) -> str:
        path = posixpath.join("experiments", project, link[1])
        return f"]({posixpath.relpath(path, folder)})"

    return _LINK.sub(relocate_link, text)


def generated_pages() -> dict[str, str]:
    """Return the text of every generated page, by its path in docs/.

    Raises:
        UserError: If a project is on no page of results, or on two.
    """
    from docs.backend_support_page import support_page
    from docs.hugging_face_page import models_page
    from docs.metrics_page import metrics_page

    readmes = {path.parent.name: read_readme(path.parent) for path in sorted(CHECKOUT.glob("experiments/*/README.md"))}
    listed = [project for _, projects in TOPICS.values() for project in projects]
    if sorted(listed) != list(readmes):
        wrong = ", ".join(sorted(set(listed) ^ set(readmes)))
        raise UserError(f"TOPICS in docs/generate.py must name every project of experiments/ once: see {wrong}")
    records = [read_record(name, page) for name, page in list_records(CHECKOUT).items()]
    return {
        "projects.md": projects_page(readmes),
        "results.md": results_index_page(readmes, records),
        **{f"results/{topic}.md": topic_page(topic, readmes) for topic in TOPICS},
        "guides/attention_backends.md": support_page(),
        "guides/metrics.md": metrics_page({name: each.title for name, each in readmes.items() if each.has_metrics}),
        "models/hugging_face.md": models_page(),
    }


def main(arguments: Arguments) -> None:
    """Write the pages, all of them or none."""
    for name, text in generated_pages().items():
        (DOCS / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(run(COMMAND, main))
