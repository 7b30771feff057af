import pytest

from leakgauge.reports.drawing import Canvas


@pytest.fixture
def texts(monkeypatch):
    """Every text that is drawn with its box (left, top, right, bottom), in the order of drawing."""
    drawn = []
    write = Canvas.text

    def record(canvas, x, y, text, anchor, *colour):
        drawn.append((text, canvas.pen.textbbox((x, y), text, canvas.font, anchor)))
        write(canvas, x, y, text, anchor, *colour)

    monkeypatch.setattr(Canvas, "text", record)
    return drawn
