"""How a conversation in one grammar goes: login, tags, retries, reconnection. Between `link` (bytes) and the drivers (meaning)."""
