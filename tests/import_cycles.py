"""Cycles in a graph of imports, of Python and of JavaScript modules."""

from collections.abc import Mapping


def find_cycles(graph: Mapping[str, set[str]]) -> list[tuple[str, ...]]:
    """Return the cycles among modules and what each imports, each cycle as its modules."""
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> list[tuple[str, ...]]:
        if name in path:
            return [path[path.index(name) :]]
        if name in done:
            return []
        cycles = [cycle for target in sorted(graph[name]) for cycle in visit(target, (*path, name))]
        done.add(name)
        return cycles

    return [cycle for name in sorted(graph) for cycle in visit(name, ())]
