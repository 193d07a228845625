"""What is tried on top of the verbs: scenarios, campaigns, rehearsals."""
