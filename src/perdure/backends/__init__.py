"""Storage backends, the protocol they implement, and their guarantees."""
