"""Adapters for other packages. An adapter imports only the public API of perdure."""
