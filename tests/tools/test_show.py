"""`lightning-shards show`: sheets of samples, and a page."""

import io
import re
import tarfile
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from lightning_shards.dataprep.show import contact_sheet
from lightning_shards.errors import ConfigError
from lightning_shards.tools import show
from tests.tools.conftest import samples_of, write_members, write_samples

HOSTILE = "<script>document.title='owned'</script>"
HOSTILE_KEY = f"{HOSTILE}&quot;'\x1b[31m"
COLOURS = [(200, 30, 40), (20, 160, 60)]
PAPER = (255, 255, 255)


def png(width, height, colour):
    out = io.BytesIO()
    Image.new("RGB", (width, height), colour).save(out, "PNG")
    return out.getvalue()


def sheet_of(images, captions=None, **options):
    captions = captions or [("key", "")] * len(images)
    data = contact_sheet(images, captions, **({"columns": 8, "size": 160} | options))
    return np.asarray(Image.open(io.BytesIO(data)))


# --- the sheet


@pytest.mark.parametrize(
    ("original", "shown"),
    [((28, 28), (140, 140)), ((5, 80), (10, 160)), ((81, 81), (81, 81)), ((320, 160), (160, 80))],
)
def test_small_images_are_enlarged_by_the_largest_whole_factor(original, shown):
    pixels = sheet_of([png(*original, COLOURS[0])])
    rows, columns = np.nonzero((pixels == COLOURS[0]).all(-1))
    assert (np.ptp(columns) + 1, np.ptp(rows) + 1) == shown


def test_each_pixel_of_a_small_image_stays_one_colour():
    squares = np.kron([[0, 255], [255, 0]], np.ones((2, 2))).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(squares).save(out, "PNG")
    drawn = sheet_of([out.getvalue()], size=100)[12:112, 12:112, 0]
    assert np.array_equal(drawn, np.kron(squares, np.ones((25, 25))))


@pytest.mark.parametrize(("samples", "columns"), [(1, 1), (3, 3), (9, 4)])
def test_a_sheet_is_no_wider_than_its_samples(samples, columns):
    sheet = sheet_of([png(80, 80, COLOURS[0])] * samples, columns=4)
    assert (sheet.shape[1] - 12) // 172 == columns


def test_a_sheet_that_no_program_opens_is_refused():
    with pytest.raises(ConfigError, match=r"50024 x 50056 pixels.*lower --samples or --size"):
        sheet_of([png(4, 4, COLOURS[0])], size=50_000)


@pytest.mark.parametrize("option", ["--output", "--html"])
def test_what_is_drawn_takes_the_place_of_no_shard(tmp_path, capsys, option):
    shards = [write_samples(tmp_path / f"{n}", [2]) / "train-000000.tar" for n in range(2)]
    before = shards[0].read_bytes()
    with pytest.raises(SystemExit, match="2"):
        show.main([option, *map(str, shards)])  # as a shell expands `--output */*.tar`
    assert f"{option} must be a file that ends in ." in capsys.readouterr().err
    assert shards[0].read_bytes() == before


@pytest.fixture
def folder(tmp_path):
    return write_samples(tmp_path / "data", [4, 6, 2])


@pytest.fixture
def draw_sheet(run_json, tmp_path):
    def call(*arguments):
        options = ["--cache-dir", tmp_path / "cache", "--output", tmp_path / "sheet.png"]
        return run_json(show.main, [*arguments, *options])

    return call


def test_the_sheet_holds_samples_evenly_spaced_with_their_labels(draw_sheet, folder, tmp_path):
    status, document = draw_sheet(folder / "*.tar", "--samples", 12, "--label", "cls")
    assert status == 0
    assert document["labels"] == [f"{key:05d} {key % 3}" for key in range(12)]
    with Image.open(tmp_path / "sheet.png") as sheet:
        # 2 rows; images of 16 x 16 are enlarged to 160 x 160
        assert (sheet.format, sheet.size) == ("PNG", (8 * 172 + 12, 2 * (160 + 2 * 16 + 12) + 12))
        first = sheet.crop((12, 12, 172, 172))
    data = samples_of(folder / "train-000000.tar")["00000"]["jpg"]
    with Image.open(io.BytesIO(data)) as image:
        enlarged = image.convert("RGB").resize((160, 160), Image.Resampling.NEAREST)
        assert first.tobytes() == enlarged.tobytes()


def test_a_class_has_its_name_under_the_image(draw_sheet, folder):
    (folder / "classes.json").write_text('{"cat": 0, "dog": 1}')
    labels = draw_sheet(folder / "*.tar", "--samples", 12, "--label", "cls")[1]["labels"]
    assert labels[:3] == ["00000 0 cat", "00001 1 dog", "00002 2"]


def test_drawn_samples_are_the_same_for_a_seed(draw_sheet, folder):
    labels = [
        draw_sheet(folder / "*.tar", "--samples", 5, "--seed", seed)[1]["labels"]
        for seed in (1, 1, 2)
    ]
    assert labels[0] == labels[1] != labels[2]
    assert len(set(labels[0])) == 5


def test_an_image_that_cannot_be_decoded_is_red_and_no_error(draw_sheet, tmp_path):
    write_members(tmp_path / "a.tar", [("a.png", b"no image"), ("a.cls", b"1")])
    assert draw_sheet(tmp_path / "a.tar")[0] == 0
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.getpixel((20, 20)) == (255, 176, 176)


@pytest.mark.parametrize("arguments", [["--image", "png"], ["--samples", "0"], ["--seed", "-1"]])
def test_what_cannot_be_drawn_is_refused(draw_sheet, folder, tmp_path, arguments):
    assert draw_sheet(folder / "*.tar", *arguments)[0] == 2
    assert not (tmp_path / "sheet.png").exists()


def test_names_of_any_letters_are_drawn(draw_sheet, folder, tmp_path):
    with tarfile.open(folder / "train-000000.tar") as archive:
        data = archive.extractfile("00000.jpg").read()
    write_members(tmp_path / "u.tar", [("犬é.jpg", data), ("犬é.txt", "犬\n".encode())])
    assert draw_sheet(tmp_path / "u.tar", "--label", "txt")[1]["labels"] == ["犬é 犬"]


# --- the page


@pytest.fixture
def draw(run_json, tmp_path):
    def call(*arguments):
        options = ["--cache-dir", tmp_path / "cache", "--processes", 1]
        return run_json(show.main, [*arguments, *options])

    return call


@pytest.fixture
def hostile(tmp_path):
    """Shards whose keys, texts and classes are hostile, with images of known colours."""
    members = []
    for number, colour in enumerate(COLOURS):
        key = f"{HOSTILE_KEY}{number}"
        members += [
            (f"{key}.png", png(28, 14, colour)),
            (f"{key}.cls", HOSTILE.encode()),
            (f"{key}.txt", (HOSTILE + "\x00\u202e" + "long" * 300).encode()),
        ]
    return write_members(tmp_path / "data" / "<b>&.tar", members)


class Page(HTMLParser):
    """The tags and texts of a page, and all addresses that it names."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self.addresses = set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.addresses += [value for name, value in attrs if name in {"src", "href", "srcset"}]
        assert not [name for name, _ in attrs if name.startswith("on")]

    def handle_data(self, data):
        self.texts.append(data)

    @property
    def text(self):
        return " ".join(self.texts)


def test_a_page_escapes_what_comes_from_the_shards(draw, hostile, tmp_path):
    status, document = draw(hostile, "--label", "cls", "--html", tmp_path / "out.html")
    text = (tmp_path / "out.html").read_text()
    page = Page(text)
    assert document["html"] == str(tmp_path / "out.html")
    assert status == 0
    assert not page.tags & {"script", "b", "link", "iframe"}
    assert all(re.match(r"data:image/png;base64,", each) for each in page.addresses)
    assert len(page.addresses) == 2
    assert HOSTILE in page.text
    assert "\\x1b[31m" in page.text
    assert "<b>&.tar" in page.text
    assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", text)


def test_a_page_has_samples_fields_and_findings(draw, tmp_path):
    folder = write_samples(tmp_path / "data", [4, 6, 2])
    broken = folder / "train-000001.tar"
    broken.write_bytes(broken.read_bytes()[:700])
    status, document = draw(folder / "*.tar", "--samples", 3, "--html", tmp_path / "out.html")
    page = Page((tmp_path / "out.html").read_text())
    assert (status, document["labels"]) == (1, ["00000", "00002", "00010"])
    for shown in (
        "3 of 6 samples in 3 shards",
        "wrong: damaged shard",
        "txt: 6 samples, 324 bytes",
        "a cat a cat",
    ):
        assert shown in " ".join(page.text.split())
    assert "img" in page.tags


def test_samples_without_images_are_shown_as_text(draw, tmp_path):
    members = [("a.txt", "猫".encode()), ("a.bin", b"\xff" * 2048)]
    path = write_members(tmp_path / "a.tar", members)
    assert draw(path, "--html", tmp_path / "out.html")[0] == 0
    text = Page((tmp_path / "out.html").read_text()).text
    assert all(shown in text for shown in ("猫", "2.0 KiB"))
    assert draw(path, "--output", tmp_path / "out.png")[0] == 2
