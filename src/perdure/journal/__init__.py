"""The stored format: records, their encoding, and the hash chain of a stream."""
