"""`python -m perdure.testing.model_server` serves until interrupted."""

from perdure.testing.model_server import main

if __name__ == "__main__":
    main()
