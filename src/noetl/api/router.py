"""Finds the route of a request: the route table as a tree of paths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote

from noetl.api.errors import WrongMethod
from noetl.api.rights import RIGHTS
from noetl.api.route import AnyRoute
from noetl.errors import NoetlError, NotFound

PATHS_REMEMBERED = 1024


class RightMissing(NoetlError):
    """A route names no right, or an unknown one: the server does not start."""

    code = "right_missing"


class Match(NamedTuple):
    """The route that a path leads to, with its path parameters. Do not modify."""

    route: AnyRoute
    path: str
    """The path as the table spells it."""
    parameters: dict[str, str]


class _Node:
    """A node of the path tree."""

    __slots__ = ("deep", "leaf", "parameter", "words")

    def __init__(self) -> None:
        self.words: dict[str, _Node] = {}
        self.parameter: _Node | None = None
        self.leaf: _Leaf | None = None
        self.deep: _Leaf | None = None


class _Leaf:
    """A path with at least one route."""

    __slots__ = ("allow", "path", "routes")

    def __init__(self, path: str) -> None:
        self.path = path
        self.routes: dict[str, AnyRoute] = {}
        self.allow = b""

    def add(self, route: AnyRoute) -> None:
        if route.method in self.routes:
            raise ValueError(f"two routes answer {route.method} {self.path}")
        self.routes[route.method] = route
        methods = {*self.routes, "OPTIONS", *(("HEAD",) if "GET" in self.routes else ())}
        self.allow = ", ".join(sorted(methods)).encode()


class Router:
    """Finds the route of a request by its path as it was sent: a slash that is escaped is a part of
    a name. Literal segments win over parameters, and these over parameters that contain slashes.

    If the winner does not serve the method, the next candidate may: `GET /api/catalog/list` reads
    the playbook "list", although `POST` to the same path lists all.
    """

    def __init__(self, routes: Sequence[AnyRoute]) -> None:
        self._root = _Node()
        self._plain: dict[str, _Leaf] = {}
        """Paths without parameters, found by one lookup."""
        self.match = lru_cache(PATHS_REMEMBERED)(self._match)
        for route in routes:
            if route.right not in RIGHTS:
                raise RightMissing(f"{route.method} {route.path} names no right, or one unknown.")
            for path in route.paths:
                self._leaf(path, deep=route.deep).add(route)

    def _leaf(self, path: str, *, deep: bool) -> _Leaf:
        node, words = self._root, [word for word in path.split("/") if word]
        for word in words[:-1] if deep else words:
            if word.startswith("{"):
                node.parameter = node = node.parameter or _Node()
            else:
                node = node.words.setdefault(word, _Node())
        leaf = (node.deep if deep else node.leaf) or _Leaf(path)
        if deep:
            node.deep = leaf
        else:
            node.leaf = leaf
        if "{" not in path:
            self._plain[path] = leaf
        return leaf

    def find(self, path: str) -> tuple[_Leaf, list[str]] | None:
        """The routes of that path, and the values of its parameters in order."""
        plain = self._plain.get(path)
        if plain is not None:
            return plain, []
        return next(self._all(path), None)

    def _all(self, path: str) -> Iterator[tuple[_Leaf, list[str]]]:
        """Every leaf that matches the path, best match first."""
        words = [word for word in path.split("/") if word]
        if "%" in path:
            words = [unquote(word) for word in words]
        return self._walk(self._root, words, 0, [])

    def _walk(
        self, node: _Node, words: list[str], at: int, given: list[str]
    ) -> Iterator[tuple[_Leaf, list[str]]]:
        if at == len(words):
            if node.leaf is not None:
                yield node.leaf, given
            return
        below = node.words.get(words[at])
        if below is not None:
            yield from self._walk(below, words, at + 1, given)
        if node.parameter is not None:
            yield from self._walk(node.parameter, words, at + 1, [*given, words[at]])
        if node.deep is not None:
            yield node.deep, [*given, "/".join(words[at:])]

    def _match(self, method: str, path: str) -> Match:
        """Raises NotFound for an unknown path, and WrongMethod for a method it does not serve."""
        found = self.find(path)
        if found is None:
            # An escaped slash is shown as one: unescaped it would name another route.
            shown = unquote(path.replace("%2F", "%252F").replace("%2f", "%252f"))
            raise NotFound(
                f"there is no route {shown[:200]}. GET /api/openapi.json lists them all."
            )
        leaf, given = found
        if method not in leaf.routes:
            found = next((one for one in self._all(path) if method in one[0].routes), None)
            if found is None:
                allow = self.allowed(path) or b""
                raise WrongMethod(
                    f"{leaf.path} does not answer {method[:20]}, only {allow.decode()}.", allow
                )
            leaf, given = found
        route = leaf.routes[method]
        return Match(route, leaf.path, dict(zip(route.parameters, given, strict=True)))

    def allowed(self, path: str) -> bytes | None:
        """The methods of a path, as the value of the header `Allow`."""
        leaves = [leaf for leaf, _ in self._all(path)]
        if len(leaves) <= 1:
            return leaves[0].allow if leaves else None
        methods = {method for leaf in leaves for method in leaf.allow.decode().split(", ")}
        return ", ".join(sorted(methods)).encode()
