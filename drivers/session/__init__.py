"""Sessions in one grammar: login, tags, retries, reconnection. Between `link` (bytes) and the
drivers (meaning).
"""
