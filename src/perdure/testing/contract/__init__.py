"""The contract suites that every backend must pass, one module per part of the protocol."""
