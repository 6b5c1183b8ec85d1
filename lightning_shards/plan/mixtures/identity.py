"""What a checkpoint says of a mixture, and the check that a resumed run may go on with another."""

from collections.abc import Mapping
from dataclasses import dataclass

from lightning_shards.errors import StateError
from lightning_shards.plan.draws import ORDER_VERSION
from lightning_shards.plan.mixtures.slots import MixtureSlots


@dataclass(frozen=True, slots=True)
class MixtureIdentity:
    """All that the samples of a mixture depend on, as plain values.

    Attributes:
        slots: Where in the sequence each component stands.
        components: By name, all that the component's own samples depend on, in words.
    """

    slots: MixtureSlots
    components: Mapping[str, str]

    def values(self) -> dict[str, int | str]:
        """The values by name, for a checkpoint."""
        components = {f"component_{name}": text for name, text in self.components.items()}
        return self._fixed() | {"stages": self.slots.schedule.to_text()} | components

    def require_resumable(self, saved: Mapping[str, object], trained: int) -> None:
        """Check that a run that was saved with these values may go on with this mixture.

        Stages that begin behind the trained samples may be others, and so may components that have
        no weight before.

        Args:
            saved: The `values` of the mixture that gave the trained samples.
            trained: How many of the run these are: all epochs before the cursor's, and its samples.

        Raises:
            StateError: They are not the first ones of this mixture.
        """
        for name, value in self._fixed().items():
            if saved.get(name) != value:
                raise StateError(
                    f"the checkpoint was made with {name}={saved.get(name)!r:.100}, this run has "
                    f"{value!r}; set it back to resume, or start anew without the loader's state"
                    f"{self._about_rounds() if name == 'dataset_size' else ''}"
                )
        self.slots.schedule.require_same(saved.get("stages"), trained)
        used = self.slots.schedule.names_before(trained)
        for name, now in self.components.items():
            was = saved.get(f"component_{name}")
            if name in used and was != now:
                raise StateError(_other_component(name, str(was), now))

    def _about_rounds(self) -> str:
        rounds = f"{self.slots.schedule.round_samples} samples in this run"
        return (
            f". An epoch is cut to whole rounds, of {rounds}: weights and `round` change it as well"
        )

    def _fixed(self) -> dict[str, int | str]:
        """What cannot change while a run goes on."""
        return {
            "order_version": ORDER_VERSION,
            "seed": self.slots.seed,
            "sampling": "mixture",
            "dataset_size": self.slots.epoch_samples,
            "round": self.slots.schedule.round_units,
            "unit": self.slots.schedule.unit,
        }


def _other_component(name: str, was: str, now: str) -> str:
    """What to say of a component that is another one now, by the values that differ."""
    saved, given = was.split(), now.split()
    before = " ".join(word for word in saved if word not in given) or "no more"
    after = " ".join(word for word in given if word not in saved) or "no more"
    is_filtered = any(word.startswith("kept=") for word in f"{before} {after}".split())
    what = "its `keep` and `exclude`, and what is in the lists," if is_filtered else "it"
    return (
        f"the checkpoint was made with the component {name!r} of {before:.200}, this run has "
        f"{after}; set {what} back to resume, or give what is new another name and a weight in a "
        "stage that is still to come"
    )
