"""The memory that a rank keeps keys and values in: pages of 16 tokens, any of which a request may
have, as in vLLM (PagedAttention, SOSP 2023). Pure.
"""

from __future__ import annotations

TOKENS = 16
"""Of a page, as vLLM's blocks have by default."""


def pages_of(tokens: int) -> int:
    """
    >>> [pages_of(tokens) for tokens in (1, 16, 17)]
    [1, 1, 2]
    """
    return -(-tokens // TOKENS)


def page_bytes(layers: int, heads: int, dimension: int, size: int) -> int:
    """Keys and values of a page: of each token, layer and head so many numbers of `size` bytes.

    >>> page_bytes(32, 8, 128, 2)  # Llama 3 8B: 128 KiB a token
    2097152
    """
    return 2 * layers * heads * dimension * size * TOKENS


class Pages:
    """Which pages are whose. tables: the pages of each request, in the order of its tokens."""

    def __init__(self, count: int) -> None:
        self._free = list(range(count))
        self.tables: dict[int, list[int]] = {}

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self, request: int, count: int) -> bool:
        """Give a request so many pages, if there are as many."""
        if count > len(self._free):
            return False
        self.tables[request] = [self._free.pop() for _ in range(count)]
        return True

    def give(self, request: int) -> None:
        """Take them back."""
        self._free += self.tables.pop(request)
