"""Jobs that share links, shifted against each other, so that one sends while the others compute."""

VERBS = {
    "job phases": "Show when each job of the lab computes and sends, and how jobs that share links fit.",
}
