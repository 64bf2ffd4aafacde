"""A program that renders a chat template in a process of its own: reads a request on stdin, answers on stdout.

A template is a stranger's program. Jinja's sandbox keeps it from Python's attributes; limits of the process bound its
time and memory, also within one call of a library, and keep it from opening files and connections. Run by path, so
that nothing of this package is imported: `transformer.data.tokenizers.chat_template` starts it.
"""

import contextlib
import datetime
import importlib.metadata
import json
import resource
import sys
from typing import Any

import jinja2
import jinja2.debug  # else imported for the first error, when no file can be opened any more
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

OLDEST = (3, 1, 6)
"""The oldest version of jinja2 whose sandbox has no known escape."""


class GenerationBlocks(jinja2.ext.Extension):
    """Reads `{% generation %}`, which marks the parts that are trained on: here its body alone."""

    tags = {"generation"}  # noqa: RUF012  as jinja2 declares it

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        """Return the body of the block."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def make_environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    """Return the environment in which transformers renders chat templates, without functions that make up text."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlocks, jinja2.ext.loopcontrols]
    )

    def raise_exception(message: Any) -> None:
        raise jinja2.exceptions.TemplateError(str(message))

    def tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda pattern: datetime.datetime.now().strftime(pattern)
    del environment.globals["lipsum"]
    return environment


def limit_process(cpu_seconds: int, memory_bytes: int) -> None:
    """Bound the time and memory of this process, and let it open nothing from here on."""
    # What Python and Jinja read of files when it is first used: the time zone, a codec, and what shows an error.
    datetime.datetime.now().strftime("%Z")
    with contextlib.suppress(jinja2.exceptions.TemplateError):
        make_environment().from_string("{{ 'a' | tojson }}{{ raise_exception('b') }}").render()
    for kind, limit in (
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 0),
    ):
        # Some systems do not have a limit of memory.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (limit, limit))


def render(template: jinja2.Template, variables: dict[str, Any], max_characters: int) -> str:
    """Render a template.

    Raises:
        ValueError: If the text is longer than `max_characters`, or has half a surrogate pair.
    """
    pieces, length = [], 0
    for piece in template.generate(variables):
        pieces.append(piece)
        length += len(piece)
        if length > max_characters:
            raise ValueError(f"it writes more than {max_characters:,} characters")
    text = "".join(pieces)
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("it writes half a surrogate pair, which is no character")
    return text


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Return the text of each conversation of a request, or what is wrong."""
    version = importlib.metadata.version("jinja2")
    if tuple(int(part) for part in version.split(".")[:3] if part.isdigit()) < OLDEST:
        return {"error": f"jinja2 {version} is too old for strangers' templates: install 3.1.6 or newer"}
    limit_process(request["cpu_seconds"], request["memory_bytes"])
    try:
        template = make_environment().from_string(request["source"])
        variables, limit = request["variables"], request["max_characters"]
        conversations = request["conversations"]
        return {"texts": [render(template, {**variables, "messages": one}, limit) for one in conversations]}
    except jinja2.exceptions.TemplateSyntaxError as error:
        return {"error": f"line {error.lineno}: {error.message}"}
    except MemoryError:
        return {"error": f"it needs more than {request['memory_bytes'] >> 20} MiB of memory"}
    except RecursionError:
        return {"error": "it calls itself without an end, or is nested too deeply"}
    except Exception as error:
        return {"error": str(error) or type(error).__name__}


if __name__ == "__main__":
    print(json.dumps(answer(json.load(sys.stdin))))
