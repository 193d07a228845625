"""For eyes: reports, live views in the terminal, the web page."""
