"""Views for people: reports, live views in the terminal, the web page."""
