"""`iclbench show glyphs --png FILE`: the picture, invalid requests, and imports."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from iclbench.cli.contact_sheet import CLASSES, DRAWINGS, SIZE, framed_grid
from iclbench.cli.main import main
from iclbench.core import png
from iclbench.families.images.glyphs import glyphs


def test_the_sheet_shows_classes_in_rows_and_drawings_in_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "new" / "sheet.png"
    assert main(["show", "glyphs", "--png", str(path)]) == 0
    assert str(path) in capsys.readouterr().out
    sheet = png.decode(path.read_bytes())
    step = SIZE + 1
    assert sheet.shape == (CLASSES * step, DRAWINGS * step)
    for row, column in ((0, 0), (7, 3), (29, 19)):
        cell = sheet[row * step : (row + 1) * step, column * step : (column + 1) * step]
        assert np.array_equal(255 - cell[1:, 1:], glyphs(0, [row * 54], [column], SIZE)[0, 0])
    main(["show", "glyphs", "--png", str(tmp_path / "second.png")])
    assert (tmp_path / "second.png").read_bytes() == path.read_bytes()


def test_only_files_that_are_pictures_are_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "mine.csv"
    table.write_text("x,y\n1,2\n")
    assert main(["show", "glyphs", "--png", str(table)]) == 2
    assert table.read_text() == "x,y\n1,2\n" and str(table) in capsys.readouterr().err
    picture = tmp_path / "sheet.png"
    picture.write_bytes(png.encode(np.zeros((1, 1), np.uint8)))
    assert main(["show", "glyphs", "--png", str(picture)]) == 0


def test_images_are_drawn_in_black_on_white_with_frames() -> None:
    image = np.zeros((1, 2, 2, 2), np.uint8)
    image[0, 1, 0, 1] = 255
    assert framed_grid(image).tolist() == [[200] * 6, [200, 255, 255, 200, 255, 0], [200, 255, 255, 200, 255, 255]]


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["glyphs"], "iclbench show glyphs --png"),
        (["linear", "--png", "x.png"], "iclbench show glyphs --png"),
        (["glyphs", "--png", "."], "--png ."),
        (["glyphs", "--png", "file/sheet.png"], "--png file/sheet.png"),
    ],
)
def test_invalid_requests_are_refused_in_one_line(
    arguments: list[str],
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("a file")
    assert main(["show", *arguments]) == 2
    err = capsys.readouterr().err
    assert len(err.strip().splitlines()) == 1
    assert name in err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file"]


@pytest.mark.slow
def test_drawing_the_picture_does_not_import_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from iclbench.cli.main import main; main(['show', 'glyphs', '--png', sys.argv[1]]);"
        "sys.exit('torch' in sys.modules or 'pandas' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "sheet.png")], check=True, capture_output=True)
