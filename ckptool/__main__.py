"""`python -m ckptool`, and the script `ckptool`."""

from .starting import prepare


def main() -> None:
    """Run the command line."""
    prepare()
    from .cli import main as run

    run()


if __name__ == "__main__":
    main()
