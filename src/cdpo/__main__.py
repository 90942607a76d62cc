"""`python -m cdpo` is `cdpo`."""

from cdpo.cli import main

if __name__ == "__main__":
    main()
