"""Ansible playbooks and the program they install on the hosts; data, found through this package."""
