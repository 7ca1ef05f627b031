"""perdure for other packages. An adapter imports only what applications may import of perdure."""
