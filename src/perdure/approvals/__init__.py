"""Approvals: calls that wait for a person's decision."""
