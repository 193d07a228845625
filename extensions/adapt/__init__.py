"""Circuits of a job's regions that follow its traffic while it runs (`testbed adapt`)."""

VERBS = {"adapt": "Make the circuits of a running job's regions follow its traffic."}
