"""`python -m fastbp` is `fastbp`."""

from fastbp.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
