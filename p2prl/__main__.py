"""`python -m p2prl`: the same program as `p2prl`."""

from p2prl.cli import main

if __name__ == "__main__":
    main()
