"""`perdure doctor`: explain a store and test its guarantees."""
