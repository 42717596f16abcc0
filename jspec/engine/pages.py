"""Who holds which page: all that a request can need at once, its prefix shared."""

import dataclasses
import itertools
from collections.abc import Hashable, Iterator, Sequence

__all__ = ["Grant", "PagePool", "Prefix"]


@dataclasses.dataclass(eq=False, slots=True)
class Prefix:
    """A full page of a text, known by its tokens and by the page before it.

    The tokens themselves are the key, so two texts never pass for one another.

    Attributes:
      page: where its keys and values are; -1 for the beginning of all texts.
      tokens: of this page.
      before: the page before it.
      after: the pages known to follow it.
      known: whether it can still be found.
      drafted: whether the drafter's part of it is filled too.
    """

    page: int = -1
    tokens: tuple[int, ...] = ()
    before: "Prefix | None" = None
    after: dict[tuple[int, ...], "Prefix"] = dataclasses.field(default_factory=dict)
    known: bool = True
    drafted: bool = True


@dataclasses.dataclass(eq=False, slots=True)
class Grant:
    """The pages of one request, from admission to release.

    Attributes:
      pages: in the order of the text; the first may be shared, read-only.
      cached_tokens: how many of the prompt they hold already, a multiple of the page.
      prefix: the last of them that was made known.
      published: how many of them were.
      drafted: pages, from the first, whose part for the drafter is filled too.
      held: whether they have not been released.
    """

    pages: list[int]
    cached_tokens: int
    prefix: Prefix
    published: int
    drafted: int = 0
    held: bool = True


class PagePool:
    """Pages that are free, held, or idle: released, but known and ready to be shared.

    A grant covers everything its request can ever need, so a request once admitted
    never waits for memory and is never put back.
    """

    def __init__(self, pages: int, page_size: int, prefix_cache: bool = True) -> None:
        """Starts with all pages free.

        Args:
          pages: how many there are.
          page_size: tokens that one holds.
          prefix_cache: whether texts that begin alike share their full pages.
        """
        if pages < 1 or page_size < 1:
            raise ValueError(
                f"a pool needs at least 1 page of at least 1 token, not {pages} pages "
                f"of {page_size}"
            )
        self.pages = pages
        self.page_size = page_size
        self.prefix_cache = prefix_cache
        self._free = list(range(pages - 1, -1, -1))
        self._idle: dict[int, None] = {}  # the longest idle first
        self._holders = [0] * pages
        self._prefix: list[Prefix | None] = [None] * pages
        self._roots: dict[Hashable, Prefix] = {}

    @property
    def available(self) -> int:
        """Pages that nobody holds."""
        return len(self._free) + len(self._idle)

    @property
    def used(self) -> int:
        """Pages that somebody holds."""
        return self.pages - self.available

    @property
    def cached(self) -> int:
        """Pages that nobody holds, kept because a text may begin with them again."""
        return len(self._idle)

    def needed(self, tokens: int) -> int:
        """Pages that so many tokens take."""
        return -(-tokens // self.page_size)

    def admit(
        self,
        prompt_ids: Sequence[int],
        capacity_tokens: int,
        salt: Hashable = None,
    ) -> Grant | None:
        """Grants all pages of a request, or `None` while there are too few.

        At most all but the last token of the prompt are found in the cache: the last
        is the first anchor, which has to be read by the first round.

        Args:
          prompt_ids: whose full pages are looked for.
          capacity_tokens: most tokens that the prompt and its continuation can have.
          salt: texts of different salt share nothing (adapters).
        """
        found = list(self._find(prompt_ids, salt))
        new = self.needed(capacity_tokens) - len(found)
        idle = sum(self._holders[node.page] == 0 for node in found)
        if new > self.available - idle:
            return None
        for node in found:
            self._idle.pop(node.page, None)
            self._holders[node.page] += 1
        prefix = found[-1] if found else self._root(salt)
        drafted = sum(1 for _ in itertools.takewhile(lambda n: n.drafted, found))
        return Grant(
            pages=[node.page for node in found] + [self._take() for _ in range(new)],
            cached_tokens=len(found) * self.page_size,
            prefix=prefix,
            published=len(found),
            drafted=drafted,
        )

    def publish(
        self,
        grant: Grant,
        token_ids: Sequence[int],
        written: int | None = None,
        drafted: int | None = None,
    ) -> None:
        """Makes the full pages of a text known, so that others may begin with them.

        Args:
          grant: whose pages they are.
          token_ids: the text from its beginning.
          written: how many of its tokens have their keys and values in the pages, or
            will have before anything that is dispatched from now on; `None`: all.
          drafted: how many of them the drafter has read; `None`: all those.
        """
        self._check(grant)
        if not self.prefix_cache:
            return
        size = self.page_size
        full = (len(token_ids) if written is None else written) // size
        self._catch_up(grant, full if drafted is None else drafted // size)
        while grant.published < min(full, len(grant.pages)) and grant.prefix.known:
            at = grant.published * size
            tokens = tuple(token_ids[at : at + size])
            node = grant.prefix.after.get(tokens)
            if node is None:
                page = grant.pages[grant.published]
                node = Prefix(page=page, tokens=tokens, before=grant.prefix)
                node.drafted = grant.published < grant.drafted
                grant.prefix.after[tokens] = self._prefix[page] = node
            grant.prefix = node
            grant.published += 1

    def _catch_up(self, grant: Grant, drafted: int) -> None:
        """The drafter has read the first pages by now; those made known say so."""
        behind = grant.drafted
        if drafted <= behind:
            return
        grant.drafted, node = drafted, grant.prefix
        for at in range(grant.published - 1, behind - 1, -1):
            if at < grant.drafted and node.page == grant.pages[at]:
                node.drafted = True
            assert node.before is not None
            node = node.before

    def release(self, grant: Grant) -> None:
        """Takes a grant back, once no round in flight can write to its pages."""
        self._check(grant)
        grant.held = False
        # The end of a text first: it goes stale before its beginning, and without
        # its beginning it could not be found.
        for page in reversed(grant.pages):
            self._holders[page] -= 1
            if self._holders[page] == 0:
                if self._prefix[page] is None:
                    self._free.append(page)
                else:
                    self._idle[page] = None

    def forget(self) -> None:
        """Makes all texts unknown; held pages stay held."""
        for root in self._roots.values():
            root.known = False
            for node in list(root.after.values()):
                self._forget(node)
        self._roots.clear()

    def _check(self, grant: Grant) -> None:
        if not grant.held:
            raise ValueError("the grant has been released already")

    def _root(self, salt: Hashable) -> Prefix:
        return self._roots.setdefault(salt, Prefix())

    def _find(self, prompt_ids: Sequence[int], salt: Hashable) -> Iterator[Prefix]:
        node = self._roots.get(salt) if self.prefix_cache else None
        for at in range(0, len(prompt_ids) - self.page_size, self.page_size):
            if node is None:
                return
            node = node.after.get(tuple(prompt_ids[at : at + self.page_size]))
            if node is not None:
                yield node

    def _take(self) -> int:
        if not self._free:
            node = self._prefix[next(iter(self._idle))]
            assert node is not None
            self._forget(node)
        page = self._free.pop()
        assert self._holders[page] == 0
        self._holders[page] = 1
        return page

    def _forget(self, node: Prefix) -> None:
        """Makes a page unknown, and those after it, which only it leads to."""
        assert node.before is not None
        del node.before.after[node.tokens]
        stack = [node]
        while stack:
            node = stack.pop()
            stack.extend(node.after.values())
            node.known = False
            node.after.clear()
            self._prefix[node.page] = None
            if node.page in self._idle:
                del self._idle[node.page]
                self._free.append(node.page)
