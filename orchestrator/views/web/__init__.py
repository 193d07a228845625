"""The page that shows a lab in a browser, and the small server behind it."""
