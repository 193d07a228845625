"""Route generations, and what their routes come to."""
