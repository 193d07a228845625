"""Jobs that share links, shifted against each other, so that one sends while the others compute."""

VERBS = {
    "coordinate": "Shift jobs that share links, so that one sends while the others compute.",
    "job phases": "Show when each job of the lab computes and sends, and how jobs that share links fit.",
}
