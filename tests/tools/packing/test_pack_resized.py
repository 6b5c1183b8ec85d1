"""`pack --resize` of samples with an image and a map of labels."""

import io

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def labels(tmp_path, jpeg):
    """A table of images and maps of the classes 0 to 150."""
    lines = ["image,mask"]
    for number in range(3):
        (tmp_path / f"{number}.jpg").write_bytes(jpeg(number))
        pixels = np.random.default_rng(number).integers(0, 151, (32, 48), dtype=np.uint8) // 50 * 50
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
        lines.append(f"{number}.jpg,{number}.png")
    (tmp_path / "rows.csv").write_text("\n".join(lines))
    return (tmp_path / "rows.csv", "--files", "image=jpg", "--files")


def image_of(data):
    return Image.open(io.BytesIO(data))


def test_the_map_gets_the_size_of_its_image_and_no_other_class(run, labels, samples_of):
    found = samples_of(run(*labels, "mask=mask.png", "--resize", 16))
    for fields in found.values():
        mask = image_of(fields["mask.png"])
        assert mask.size == image_of(fields["jpg"]).size == (24, 16)
        assert set(np.unique(mask)) <= {0, 50, 100, 150}


def test_what_is_not_clear_is_refused(refused, labels, tmp_path):
    assert "give a map of values a field with a dot" in refused(*labels, "mask=png", "--resize", 16)
    assert not list(tmp_path.rglob("*.tar"))
