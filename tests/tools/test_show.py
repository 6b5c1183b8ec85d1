"""`lightning-shards show`: sheets of samples."""

import io

import pytest
from PIL import Image

from lightning_shards.tools import show
from tests.tools.conftest import samples_of, write_members


@pytest.fixture
def draw_sheet(run_json, tmp_path):
    def call(*arguments):
        options = ["--cache-dir", tmp_path / "cache", "--output", tmp_path / "sheet.png"]
        return run_json(show.main, [*arguments, *options])

    return call


def test_the_sheet_holds_samples_evenly_spaced_with_their_labels(draw_sheet, folder, tmp_path):
    status, document = draw_sheet(folder / "*.tar", "--samples", 9, "--label", "cls")
    assert status == 0
    assert document["labels"] == [f"{key:05d} {key % 3}" for key in range(9)]
    with Image.open(tmp_path / "sheet.png") as sheet:
        # 2 rows; images of 16 x 16 are enlarged to 160 x 160
        assert (sheet.format, sheet.size) == ("PNG", (8 * 172 + 12, 2 * (160 + 2 * 16 + 12) + 12))
        first = sheet.crop((12, 12, 172, 172))
    data = samples_of(folder / "train-000000.tar")["00000"]["jpg"]
    with Image.open(io.BytesIO(data)) as image:
        enlarged = image.convert("RGB").resize((160, 160), Image.Resampling.NEAREST)
        assert first.tobytes() == enlarged.tobytes()


def test_an_image_that_cannot_be_decoded_is_red_and_no_error(draw_sheet, tmp_path):
    write_members(tmp_path / "a.tar", [("a.png", b"no image"), ("a.cls", b"1")])
    assert draw_sheet(tmp_path / "a.tar")[0] == 0
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.getpixel((20, 20)) == (255, 176, 176)


@pytest.mark.parametrize("arguments", [["--image", "png"], ["--samples", "0"]])
def test_what_cannot_be_drawn_is_refused(draw_sheet, folder, tmp_path, arguments):
    assert draw_sheet(folder / "*.tar", *arguments)[0] == 2
    assert not (tmp_path / "sheet.png").exists()


def test_what_is_drawn_takes_the_place_of_no_shard(folder, refused_by):
    shards = sorted(folder.glob("*.tar"))
    before = shards[0].read_bytes()
    said = refused_by(show, "--output", *shards)  # as a shell expands `--output *.tar`
    assert "--output must be a file that ends in .png" in said
    assert shards[0].read_bytes() == before
