"""Read and change the named values of a function: those that `checkpoint_name` names, within scopes of jax.named_scope.

The function is traced once as it stands, and its trace is evaluated with the changes. A value in a scan, such as the
stream between scanned layers, is one array with a leading axis of its occurrences.
"""

import collections
import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

PyTree = Any
# A change of each occurrence of a value: a function of the occurrence's entry of `arrays` and of the value.
ApplyChange = Callable[[PyTree, jax.Array], jax.Array]
# What is returned of each occurrence of a value.
Summarize = Callable[[jax.Array], PyTree]


class Occurrences(NamedTuple):
    """The occurrences of a named value.

    Attributes:
        number: How many there are.
        shape: The shape and dtype of one; None if they differ.
    """

    number: int
    shape: jax.ShapeDtypeStruct | None


class Change(NamedTuple):
    """A change of all occurrences of a named value.

    Attributes:
        apply: Returns what replaces one occurrence.
        arrays: A pytree of arrays with a leading axis of occurrences.
    """

    apply: ApplyChange
    arrays: PyTree


def trace(function: Callable[..., PyTree], *args: PyTree) -> tuple[ClosedJaxpr, PyTree]:
    """Trace a function, and return what it computes and the structure of its results."""
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
    return closed, jax.tree.structure(shapes)


def find_named_values(closed: ClosedJaxpr) -> dict[str, Occurrences]:
    """Return the named values of a trace, by path, in the order in which they first occur."""
    return _find(closed.jaxpr, "")


def execution_order(closed: ClosedJaxpr) -> list[tuple[str, int]]:
    """Return the path and the number of every occurrence of a named value, in the order in which they are computed."""
    counts: collections.Counter[str] = collections.Counter()
    order = []
    for path in _paths_in_order(closed.jaxpr, ""):
        order.append((path, counts[path]))
        counts[path] += 1
    return order


def evaluate(
    closed: ClosedJaxpr,
    args: Sequence[jax.Array],
    summaries: Mapping[str, Summarize],
    changes: Mapping[str, Sequence[Change]],
) -> tuple[list[jax.Array], dict[str, PyTree]]:
    """Evaluate a trace with changes of named values.

    Args:
        closed: The trace.
        args: Its flat arguments.
        summaries: What to return of values, by path: a function of the value, as it is after its changes.
        changes: Changes by path, applied in their order.

    Returns:
        The flat results, and the summaries with a leading axis of occurrences.
    """
    functions = {path: tuple(change.apply for change in own_changes) for path, own_changes in changes.items()}
    evaluation = _Evaluation(summaries, functions)
    arrays = {path: tuple(change.arrays for change in own_changes) for path, own_changes in changes.items()}
    return evaluation.run(closed.jaxpr, closed.consts, args, "", arrays)


def _own_scope(equation: Any) -> str:
    """The scope of an equation in its program; transformations, as in "vmap(experts)", are left out."""
    names = re.sub(r"\w*\(|\)", "", str(equation.source_info.name_stack)).split("/")
    return "/".join(name for name in names if name)


def _path(scope: str, equation: Any) -> str:
    """The scope of an equation, whose program has a scope itself."""
    return "/".join(part for part in (scope, _own_scope(equation)) if part)


def _inner_program(equation: Any) -> tuple[Jaxpr, Sequence[Any], int] | None:
    """The program that an equation runs, its constants, and how often it runs; None for other equations."""
    params = equation.params
    match equation.primitive.name:
        case "scan":
            return params["jaxpr"].jaxpr, params["jaxpr"].consts, params["length"]
        case "jit" | "pjit":
            return params["jaxpr"].jaxpr, params["jaxpr"].consts, 1
        case "remat2" | "checkpoint":
            return params["jaxpr"], (), 1
        case _:
            return None


def _is_named_value(equation: Any) -> bool:
    return equation.primitive.name == "name"


def _named_path(scope: str, equation: Any) -> str:
    return "/".join(part for part in (_path(scope, equation), equation.params["name"]) if part)


def _find(program: Jaxpr, scope: str) -> dict[str, Occurrences]:
    occurrences: dict[str, Occurrences] = {}
    for equation in program.eqns:
        if _is_named_value(equation):
            aval: Any = equation.outvars[0].aval
            new = {_named_path(scope, equation): Occurrences(1, jax.ShapeDtypeStruct(aval.shape, aval.dtype))}
        else:
            new = _find_inside(equation, scope)
        for path, (number, shape) in new.items():
            earlier = occurrences.get(path, Occurrences(0, shape))
            occurrences[path] = Occurrences(earlier.number + number, shape if shape == earlier.shape else None)
    return occurrences


def _paths_in_order(program: Jaxpr, scope: str) -> Iterator[str]:
    for equation in program.eqns:
        if _is_named_value(equation):
            yield _named_path(scope, equation)
        elif (inner := _inner_program(equation)) is not None:
            paths = list(_paths_in_order(inner[0], _path(scope, equation)))
            yield from paths * inner[2]


def _find_inside(equation: Any, scope: str) -> dict[str, Occurrences]:
    """The named values of the program that an equation runs."""
    inner = _inner_program(equation)
    if inner is None:
        return {}
    program, _, times = inner
    inside = _find(program, _path(scope, equation))
    return {path: Occurrences(times * number, shape) for path, (number, shape) in inside.items()}


class _Evaluation(NamedTuple):
    """The evaluation of a trace.

    Attributes:
        summaries: What to return of values, by path.
        functions: The functions of the changes, by path.
    """

    summaries: Mapping[str, Summarize]
    functions: Mapping[str, tuple[ApplyChange, ...]]

    def run(
        self, program: Jaxpr, consts: Sequence[Any], args: Sequence[Any], scope: str, arrays: Mapping[str, PyTree]
    ) -> tuple[list[Any], dict[str, PyTree]]:
        """Evaluate a program.

        Args:
            program: The program.
            consts: Its constants.
            args: Its arguments.
            scope: Its scope.
            arrays: The arrays of the changes of its named values, by path.

        Returns:
            The results, and the summaries with a leading axis of occurrences.
        """
        values: dict[Any, Any] = dict(zip((*program.constvars, *program.invars), (*consts, *args), strict=True))
        occurrences: dict[str, int] = {}
        collected: dict[str, list[PyTree]] = {}

        def read(variable: Any) -> Any:
            return variable.val if isinstance(variable, Literal) else values[variable]

        def next_entries(path: str, count: int) -> slice:
            start = occurrences.get(path, 0)
            occurrences[path] = start + count
            return slice(start, start + count)

        for equation in program.eqns:
            inputs = [read(variable) for variable in equation.invars]
            inner = _find_inside(equation, scope)
            own_scope = _own_scope(equation)
            with equation.ctx.manager, jax.named_scope(own_scope) if own_scope else contextlib.nullcontext():
                if _is_named_value(equation):
                    path = _named_path(scope, equation)
                    (value,) = inputs
                    if path in arrays:
                        entry = _take(arrays[path], next_entries(path, 1).start)
                        for function, own_arrays in zip(self.functions[path], entry, strict=True):
                            value = function(own_arrays, value)
                    results = _bind(equation, [value])  # named again, for policies of rematerialization
                    if path in self.summaries:
                        summary = jax.tree.map(lambda leaf: leaf[None], self.summaries[path](results[0]))
                        collected.setdefault(path, []).append(summary)
                elif any(path in self.summaries or path in self.functions for path in inner):
                    entries_by_path = {
                        path: next_entries(path, value_occurrences.number) for path, value_occurrences in inner.items()
                    }
                    own_arrays = {
                        path: _take(arrays[path], entries)
                        for path, entries in entries_by_path.items()
                        if path in arrays
                    }
                    results, returned = self._run_inner(equation, inputs, _path(scope, equation), own_arrays)
                    for path, value in returned.items():
                        collected.setdefault(path, []).append(value)
                else:
                    results = _bind(equation, inputs)
            values.update(zip(equation.outvars, results, strict=True))
        joined = {
            path: jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts) if len(parts) > 1 else parts[0]
            for path, parts in collected.items()
        }
        return [read(variable) for variable in program.outvars], joined

    def _run_inner(
        self, equation: Any, inputs: list[Any], scope: str, arrays: Mapping[str, PyTree]
    ) -> tuple[list[Any], dict[str, PyTree]]:
        inner = _inner_program(equation)
        assert inner is not None
        program, consts, length = inner
        run = functools.partial(self.run, program, consts, scope=scope)
        match equation.primitive.name:
            case "scan":
                return self._run_scan(equation, inputs, run, length, arrays)
            case "remat2" | "checkpoint":
                options = {name: equation.params[name] for name in ("policy", "prevent_cse")}
                return jax.checkpoint(lambda args, arrays: run(args, arrays=arrays), **options)(inputs, arrays)
            case _:
                return run(inputs, arrays=arrays)

    def _run_scan(
        self, equation: Any, inputs: list[Any], run: Callable[..., Any], length: int, arrays: Mapping[str, PyTree]
    ) -> tuple[list[Any], dict[str, PyTree]]:
        """Run a scan whose body also reads the arrays of its own occurrences and returns its values."""
        body = equation.params["jaxpr"].jaxpr
        # Scanned arrays have one axis more than the body sees; what is carried has the same outside.
        num_carried = sum(
            outside.aval.ndim == inside.aval.ndim
            for outside, inside in zip(equation.outvars, body.outvars, strict=True)
        )
        num_scanned = sum(
            outside.aval.ndim != inside.aval.ndim for outside, inside in zip(equation.invars, body.invars, strict=True)
        )
        num_consts = len(inputs) - num_carried - num_scanned
        consts, initial, scanned = (
            inputs[:num_consts],
            inputs[num_consts : num_consts + num_carried],
            inputs[num_consts + num_carried :],
        )
        by_iteration = jax.tree.map(lambda leaf: leaf.reshape(length, -1, *leaf.shape[1:]), dict(arrays))

        def step(carry: list[Any], entries: tuple[list[Any], Mapping[str, PyTree]]) -> tuple[list[Any], Any]:
            slices, own_arrays = entries
            results, returned = run([*consts, *carry, *slices], arrays=own_arrays)
            return results[:num_carried], (results[num_carried:], returned)

        options = {name: equation.params[name] for name in ("length", "reverse", "unroll")}
        final, (stacked, returned) = jax.lax.scan(step, initial, (scanned, by_iteration), **options)
        return [*final, *stacked], jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), returned)


def _take(arrays: PyTree, entries: int | slice) -> PyTree:
    """Take entries of the leading axis of every array."""
    return jax.tree.map(lambda leaf: leaf[entries], arrays)


def _bind(equation: Any, inputs: Sequence[Any]) -> list[Any]:
    """Apply the primitive of an equation."""
    bound = equation.primitive.get_bind_params(equation.params)
    functions, params = bound if isinstance(bound, tuple) else ((), bound)
    results = equation.primitive.bind(*functions, *inputs, **params)
    return list(results) if equation.primitive.multiple_results else [results]
