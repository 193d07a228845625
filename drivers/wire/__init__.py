"""Public protocol grammars as data: bytes in, values out; no socket, no clock."""
