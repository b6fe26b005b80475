"""``python -m nestruct``: the command line."""

from nestruct.cli import main

if __name__ == "__main__":
    main()
