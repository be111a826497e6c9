"""`python -m ckptool`, and the script `ckptool`."""

from .starting import answer_signals


def main() -> None:
    """Run the command line."""
    answer_signals()
    from .cli import main as run

    run()


if __name__ == "__main__":
    main()
