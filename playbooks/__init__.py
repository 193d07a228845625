"""Ansible playbooks: data, found through this package."""
