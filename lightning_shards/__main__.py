"""The `lightning-shards` command: fit, validate, test and predict by LightningCLI."""

from lightning_shards.cli import main

if __name__ == "__main__":
    main()
