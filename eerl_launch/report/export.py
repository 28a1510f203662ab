"""Pages as PDF and PNG, printed by an installed Chromium or Chrome, each marked as eerl's own."""

from __future__ import annotations

import tempfile
from pathlib import Path

from eerl_launch.report.browser import Browser, BrowserError
from eerl_launch.report.png import with_text

#: Room for the page in pixels: about A4 at 96 pixels an inch, and the page's own greatest width.
SUMMARY_WIDTH_PX, REPORT_WIDTH_PX = 900, 1240
#: Chromium leaves pictures taller than its largest texture blank below it.
MOST_PX = 16_000
#: Where a file says whose it is: a comment behind the end of a PDF, a text chunk of a PNG.
PDF_MARK = b"%eerl\n"
PNG_MARK = ("Software", "eerl")


def pdf(page: str) -> bytes:
    """The page as it is printed; :class:`BrowserError` when no browser does it."""
    with tempfile.TemporaryDirectory(prefix="eerl-page-") as folder, Browser() as browser:
        browser.open(_written(page, folder), REPORT_WIDTH_PX, 900)
        return browser.pdf().rstrip(b"\n") + b"\n" + PDF_MARK


def png(page: str, width_px: int, *, scale: int = 1) -> bytes:
    """The whole page as a picture, ``scale`` pixels of it for one of the page; :class:`BrowserError` as above."""
    with tempfile.TemporaryDirectory(prefix="eerl-page-") as folder, Browser() as browser:
        browser.open(_written(page, folder), width_px, 900, scale=scale)
        height_px = scale * int(browser.evaluate("document.documentElement.scrollHeight"))
        if height_px > MOST_PX:
            raise BrowserError(f"the page is too tall for one picture ({height_px:,} pixels); take PDF")
        return with_text(browser.png(), *PNG_MARK)


def _written(page: str, folder: str) -> Path:
    path = Path(folder) / "page.html"
    path.write_text(page, encoding="utf-8", errors="replace")
    return path
