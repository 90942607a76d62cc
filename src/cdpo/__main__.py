"""The command `cdpo`, which is also `python -m cdpo`."""

import os
import signal


def main() -> None:
    """Entry point. While the rest is imported there is nothing to save: a signal then ends the process quietly."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, frame: os._exit(128 + number))
    from cdpo.cli import main as run

    run()


if __name__ == "__main__":
    main()
