"""The verbs. The only room that moves light or routes."""
