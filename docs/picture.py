"""python docs/picture.py: makes the picture of the README, `docs/first_look.png`.

It runs the quickstart, and puts a sheet of its digits above the line that the fit ends with.
"""

import re
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import wrap

from PIL import Image, ImageDraw, ImageFont

ROOT = Path(__file__).parents[1]
DIGITS, LETTERS = 16, 110  # on the sheet, and in a line
LINE = 24  # pixels


def main() -> None:
    """Run the quickstart, and draw what it packed and what it said."""
    with TemporaryDirectory() as folder:
        run = [sys.executable, ROOT / "examples/quickstart.py", "--folder", folder]
        said = subprocess.run(run, capture_output=True, text=True, check=True)  # noqa: S603 ours
        verdicts = re.findall("^data throughput: .*$", said.stdout + said.stderr, re.MULTILINE)
        sheet = Path(folder, "sheet.png")
        show = ["show", f"{folder}/val/val-*.tar", "--label", "cls", "--samples", str(DIGITS)]
        command = [sys.executable, "-m", "lightning_shards", *show, "--output", sheet]
        subprocess.run(command, check=True)  # noqa: S603 ours
        digits = Image.open(BytesIO(sheet.read_bytes()))
    lines = ["$ python examples/quickstart.py", *wrap(verdicts[-1], LETTERS)]
    picture = Image.new("RGB", (digits.width, digits.height + LINE * (len(lines) + 1)), "white")
    picture.paste(digits, (0, 0))
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(20)
    for number, line in enumerate(lines):
        draw.text((12, digits.height + LINE * number), line, "black", font)
    picture.quantize(64).save(ROOT / "docs/first_look.png", optimize=True)


if __name__ == "__main__":
    main()
