"""The report's two pages, each made once: as HTML, and as PDF and PNG by an installed Chromium or Chrome."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from eerl_launch.errors import EerlError
from eerl_launch.report.document import Report

if TYPE_CHECKING:
    from eerl_launch.report.browser import Browser

#: The pages by name.
REPORT, SUMMARY = "report", "summary"
#: By page: width in pixels, and pixels of a picture for one of the page (a summary is also looked at in print).
_ROOM = {REPORT: (1240, 1), SUMMARY: (900, 2)}
#: Chromium leaves pictures that are taller than its largest texture blank below it.
_MOST_PX = 16_000
#: Where a file says whose it is: a comment behind the end of a PDF, a text chunk of a PNG.
_PDF_MARK = b"%eerl\n"
_PNG_MARK = ("Software", "eerl")


class Pages:
    """Makes the pages of one report when they are asked for; a context manager that ends the browser.

    :meth:`pdf` and :meth:`png` raise :class:`BrowserError` when there is no browser or it fails.
    """

    def __init__(self, report: Report) -> None:
        self.report = report
        self._texts: dict[str, str] = {}
        self._open = ExitStack()
        self._browser: Browser | None = None
        self._no_browser: EerlError | None = None

    def __enter__(self) -> Pages:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def html(self, name: str) -> str:
        """The page as text."""
        if name not in self._texts:
            from eerl_launch.report.html import render_html, render_summary_page

            render = render_summary_page if name == SUMMARY else render_html
            self._texts[name] = render(self.report)
        return self._texts[name]

    def pdf(self, name: str) -> bytes:
        """The page as it is printed."""
        return self._shown(name).pdf().rstrip(b"\n") + b"\n" + _PDF_MARK

    def png(self, name: str) -> bytes:
        """The whole page as a picture."""
        from eerl_launch.report.browser import BrowserError
        from eerl_launch.report.png import with_text

        browser = self._shown(name)
        height_px = _ROOM[name][1] * int(browser.evaluate("document.documentElement.scrollHeight"))
        if height_px > _MOST_PX:
            raise BrowserError(f"the page is too tall for one picture ({height_px:,} pixels); take PDF")
        return with_text(browser.png(), *_PNG_MARK)

    def _shown(self, name: str) -> Browser:
        browser = self._started()
        path = Path(self._folder) / f"{name}.html"
        path.write_text(self.html(name), encoding="utf-8", errors="replace")
        width_px, scale = _ROOM[name]
        browser.open(path, width_px, 900, scale=scale)
        return browser

    def _started(self) -> Browser:
        if self._no_browser is not None:
            raise self._no_browser  # one that did not start is not started again for the next page
        if self._browser is None:
            from eerl_launch.report.browser import Browser, BrowserError

            self._folder = self._open.enter_context(tempfile.TemporaryDirectory(prefix="eerl-page-"))
            try:
                self._browser = self._open.enter_context(Browser())
            except BrowserError as error:
                self._no_browser = error
                raise
        return self._browser
