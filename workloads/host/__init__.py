"""What a rank learns of its place, its links and its time: from the launcher's environment and from
the host's agent.
"""
