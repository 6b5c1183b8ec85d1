"""`lightning-shards show`: sheets that fit their samples, and a page, looked at in a browser.

What the sheet holds is tested with `info` in test_info.py.
"""

import html
import io
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lightning_shards.dataprep.inspection.contact_sheet import contact_sheet, shortened
from lightning_shards.errors import ConfigError
from lightning_shards.tools import show
from tests.tools.conftest import write_members, write_samples

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


@pytest.mark.parametrize(("samples", "columns"), [(1, 1), (6, 3), (8, 4), (9, 3), (10, 4)])
def test_rows_are_filled_evenly(samples, columns):
    sheet = sheet_of([png(80, 80, COLOURS[0])] * samples, columns=4)
    assert (sheet.shape[1] - 12) // 172 == columns


def test_captions_of_neighbours_do_not_touch():
    captions = [("W" * 300, "M" * 300)] * 3
    sheet = sheet_of([png(28, 28, COLOURS[0])] * 3, captions)
    below = sheet[12 + 140 + 2 :]
    assert (below != PAPER).any()
    for gap in (0, 152, 304, 456):  # before, between and after columns of 140
        assert (below[:, gap : gap + 12] == PAPER).all()


def test_what_is_left_out_of_a_key_is_its_middle():
    assert shortened("train/cats/000017", 9, len, middle=True) == "trai…0017"
    assert shortened("a cat", 5, len) == "a cat"
    assert shortened("a cat", 0, len) == "…"


def test_a_sheet_that_no_program_opens_is_refused():
    with pytest.raises(ConfigError, match=r"50024 x 50040 pixels.*lower --samples or --size"):
        sheet_of([png(4, 4, COLOURS[0])], size=50_000)


def test_a_sheet_takes_the_place_of_no_file_but_a_png(draw, tmp_path, capsys):
    shards = [write_samples(tmp_path / f"{n}", [2]) / "train-000000.tar" for n in range(2)]
    before = shards[0].read_bytes()
    with pytest.raises(SystemExit, match="2"):
        show.main(["--output", *map(str, shards)])  # as a shell expands `--output */*.tar`
    assert "is there already, and is no PNG" in capsys.readouterr().err
    assert shards[0].read_bytes() == before
    sheet = tmp_path / "sheet.png"
    sheet.touch()
    assert draw("--output", sheet, *shards)[0] == 0
    first = sheet.read_bytes()
    assert draw("--output", sheet, shards[0])[0] == 0
    assert sheet.read_bytes() != first


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
    assert document["output"] is None
    assert status == 1  # control characters in keys are a finding
    assert not page.tags & {"script", "b", "link", "iframe"}
    assert all(re.match(r"data:image/png;base64,|#\w+$", each) for each in page.addresses)
    assert len(page.addresses) == 2 + 5  # images, and links from the numbers
    assert HOSTILE in page.text
    assert "\\x1b[31m" in page.text
    assert "<b>&.tar" in page.text
    assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", text)


def test_a_page_has_samples_fields_sizes_classes_shards_and_findings(draw, tmp_path):
    folder = write_samples(tmp_path / "data", [4, 6, 2])
    broken = folder / "train-000001.tar"
    broken.write_bytes(broken.read_bytes()[:700])
    status, document = draw(folder / "*.tar", "--samples", 3, "--html", tmp_path / "out.html")
    page = Page((tmp_path / "out.html").read_text())
    assert (status, document["labels"]) == (1, ["00000", "00002", "00010"])
    for shown in (
        "3 of 6, evenly spaced",
        "wrong: damaged shard",
        "JPEG · all samples",
        "54 bytes",
        "3 values of the field cls",
        "33.3%",
        "train-000002.tar",
        "a cat a cat",
    ):
        assert shown in page.text  # fmt: skip
    assert page.tags >= {"img", "table", "details"}


def test_samples_without_images_are_shown_as_text(draw, tmp_path):
    np.save(array := io.BytesIO(), np.zeros((2, 3), np.uint16))
    members = [("a.npy", array.getvalue()), ("a.txt", "猫".encode()), ("a.bin", b"\xff" * 2048)]
    path = write_members(tmp_path / "a.tar", members)
    assert draw(path, "--html", tmp_path / "out.html")[0] == 0
    text = Page((tmp_path / "out.html").read_text()).text
    assert all(shown in text for shown in ("uint16 (2, 3)", "猫", "2.0 KiB"))
    assert draw(path, "--output", tmp_path / "out.png")[0] == 2


@pytest.mark.parametrize(
    "header",
    [
        b"{",  # numpy raises TokenError
        b"{[]: 1}",  # TypeError
        b"{" + b"[" * 9999,
        b"{'descr': '<u2', 'fortran_order': False, 'shape': 3}",
        b"\xff\0",
    ],
)
def test_a_damaged_array_does_not_keep_others_from_being_shown(draw, tmp_path, header):
    npy = b"\x93NUMPY\x01\0" + len(header).to_bytes(2, "little") + header
    path = write_members(tmp_path / "a.tar", [("a.npy", npy), ("a.txt", "猫".encode())])
    assert draw(path, "--html", tmp_path / "out.html")[0] == 0
    assert "猫" in (tmp_path / "out.html").read_text()


def test_a_page_takes_no_other_files_place(draw, hostile, tmp_path, capsys):
    (tmp_path / "out.html").write_text("mine")
    with pytest.raises(SystemExit, match="2"):
        show.main([str(hostile), "--html", str(tmp_path / "out.html")])
    assert "out.html is there already; name another file for --html" in capsys.readouterr().err
    assert (tmp_path / "out.html").read_text() == "mine"


# --- in a browser

MEASURE = """
const canvas = document.createElement('canvas').getContext('2d');
function colour(image) {
  canvas.drawImage(image, 0, 0);
  return [...canvas.getImageData(3, 3, 1, 1).data].slice(0, 3);
}
onload = () => {
  const found = [...document.querySelectorAll('iframe')].map(frame => {
    const page = frame.contentDocument, all = [...page.querySelectorAll('body *')];
    return {
      width: frame.clientWidth, needed: page.documentElement.scrollWidth, title: page.title,
      outside: all.filter(e => e.getBoundingClientRect().right > frame.clientWidth + 1).length,
      images: [...page.images].map(i => [i.naturalWidth, i.naturalHeight, i.width, i.height]),
      colours: [...page.images].map(colour),
    };
  });
  document.getElementById('found').textContent = JSON.stringify(found);
};
"""


def test_a_browser_shows_the_page_on_a_phone_and_on_a_screen(
    draw, hostile, tmp_path, start_program
):
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no browser to look at the page with: apt-get install chromium")
    draw(hostile, "--label", "cls", "--html", tmp_path / "out.html")
    page = (tmp_path / "out.html").read_text()
    unguarded = re.sub(r"<meta[^>]*Content-Security-Policy[^>]*>", "", page)
    assert unguarded != page  # where scripts may run, only the escapes hold them back
    frames = [
        f'<iframe style="width:{width}px;height:900px;border:0" srcdoc="{html.escape(text)}">'
        "</iframe>"
        for width, text in ((400, page), (1200, page), (400, unguarded))
    ]
    viewer = tmp_path / "viewer.html"
    viewer.write_text(f"<pre id=found></pre>{''.join(frames)}<script>{MEASURE}</script>")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    options += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=10000"]
    with start_program([chromium, *options, "--dump-dom", viewer.as_uri()], tmp_path) as process:
        said = process.communicate(timeout=120)[0]
    found = re.search('<pre id="found">(.+?)</pre>', said)
    assert found, said
    for frame, width in zip(json.loads(html.unescape(found[1])), (400, 1200, 400), strict=True):
        assert (frame["width"], frame["needed"], frame["outside"]) == (width, width, 0)
        assert frame["title"].endswith("· samples")  # not what the key's script says
        assert frame["images"] == [[28, 14, 140, 70]] * 2
        assert frame["colours"] == [list(colour) for colour in COLOURS]


def test_a_page_is_one_file_with_a_policy_against_all_else(draw, hostile, tmp_path):
    draw(hostile, "--html", tmp_path / "out.html")
    text = (tmp_path / "out.html").read_text()
    assert "default-src 'none'; img-src data:" in html.unescape(text)
    assert "url(" not in text
    assert "@import" not in text
    assert [path.name for path in Path(tmp_path).glob("*.html")] == ["out.html"]
