"""Nothing is shown of a congestion control itself."""

NUMBERS = ()


def panels() -> tuple[()]:
    """None."""
    return ()
