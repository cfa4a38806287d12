"""`iclbench show glyphs --png FILE`: the picture, its manners, and that it needs no heavy library."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from iclbench.cli.contact_sheet import CLASSES, DRAWINGS, SIZE, arranged
from iclbench.cli.main import main
from iclbench.core import png
from iclbench.families.images.glyphs import glyphs


def test_the_sheet_shows_classes_in_rows_and_drawings_in_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "new" / "sheet.png"
    assert main(["show", "glyphs", "--png", str(path)]) == 0
    assert "30 of 1,623 classes" in capsys.readouterr().out
    found = png.decode(path.read_bytes())
    step = SIZE + 1
    assert found.shape == (CLASSES * step, DRAWINGS * step)
    for row, column in ((0, 0), (7, 3), (29, 19)):
        part = found[row * step : (row + 1) * step, column * step : (column + 1) * step]
        assert np.array_equal(255 - part[1:, 1:], glyphs(0, [row * 54], [column], SIZE)[0, 0])
    main(["show", "glyphs", "--png", str(tmp_path / "again.png")])
    assert (tmp_path / "again.png").read_bytes() == path.read_bytes()


def test_only_a_picture_is_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "mine.csv"
    mine.write_text("x,y\n1,2\n")
    assert main(["show", "glyphs", "--png", str(mine)]) == 2
    assert mine.read_text() == "x,y\n1,2\n" and str(mine) in capsys.readouterr().err
    picture = tmp_path / "sheet.png"
    picture.write_bytes(png.encode(np.zeros((1, 1), np.uint8)))
    assert main(["show", "glyphs", "--png", str(picture)]) == 0


def test_images_are_framed_on_white_paper() -> None:
    image = np.zeros((1, 2, 2, 2), np.uint8)
    image[0, 1, 0, 1] = 255
    assert arranged(image).tolist() == [[200] * 6, [200, 255, 255, 200, 255, 0], [200, 255, 255, 200, 255, 255]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["glyphs"], "iclbench show glyphs --png FILE"),
        (["linear", "--png", "x.png"], "only glyphs are shown as a picture"),
        (["glyphs", "--png", "."], "this is a folder; name a file"),
        (["glyphs", "--png", "file/sheet.png"], "--png file/sheet.png"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("in the way")
    assert main(["show", *arguments]) == 2
    err = capsys.readouterr().err
    assert len(err.strip().splitlines()) == 1
    assert re.search(message, err)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file"]


def test_the_picture_needs_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from iclbench.cli.main import main; main(['show', 'glyphs', '--png', sys.argv[1]]);"
        "sys.exit('torch' in sys.modules or 'pandas' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "sheet.png")], check=True, capture_output=True)
