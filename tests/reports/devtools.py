"""A page in a real browser: at any width, light or dark, measured, clicked, pictured, printed.

Chromium is driven by the DevTools protocol over a pipe. That takes the standard library only, and
one browser serves all pages. What pages say to the console counts as a complaint.
"""

import base64
import json
import os
import subprocess
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
    "--disable-background-networking --disable-component-update --hide-scrollbars "
    "--remote-debugging-pipe --disable-dev-shm-usage"
)
# What is wider than the window, and nothing that scrolls holds it.
OVERFLOW = """(() => {
  const held = (one) => one && one !== document.documentElement && (
    /auto|scroll|hidden/.test(getComputedStyle(one).overflowX) || held(one.parentElement));
  return [...document.querySelectorAll("body *")].filter((one) => {
    const box = one.getBoundingClientRect();
    return box.width && box.right > innerWidth + 1 && !held(one.parentElement);
  }).map((one) => `${one.tagName}.${one.getAttribute("class")}`);
})()"""


class Browser:
    """One tab of a browser that runs: see `browser`."""

    def __init__(self, receive: int, send: int) -> None:
        self._receive, self._send = receive, send
        self._rest, self._calls, self._session = b"", 0, ""
        self._waiting: deque[dict[str, Any]] = deque()
        self.complaints: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def open(
        self,
        page: Path,
        *,
        query: str = "",
        width: int = 1200,
        dark: bool = False,
        printed: bool = False,
    ) -> None:
        """Opens a page; complaints are those from here on."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        media = "print" if printed else ""
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.complaints.clear()
        self._waiting.clear()
        self.call("Page.navigate", url=page.resolve().as_uri() + query)
        self._wait("Page.loadEventFired")

    def play(self, milliseconds: int) -> None:
        """Lets the page's own time pass, without waiting for it."""
        policy = "pauseIfNetworkFetchesPending"
        self.call("Emulation.setVirtualTimePolicy", policy=policy, budget=milliseconds)
        self._wait("Emulation.virtualTimeBudgetExpired")

    def run(self, code: str) -> Any:
        """What an expression is worth in the page."""
        asked = {"expression": code, "returnByValue": True, "awaitPromise": True}
        found = self.call("Runtime.evaluate", **asked)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def height(self) -> int:
        """The document's height in pixels."""
        return self.run("document.documentElement.scrollHeight")

    def overflow(self) -> list[str]:
        """What makes the whole document scroll sideways."""
        wide = self.run("document.documentElement.scrollWidth > innerWidth")
        return [*self.run(OVERFLOW), *["the document"] * wide]

    def picture(self, file: Path, *, whole: bool = False) -> None:
        """Writes a PNG of the first screen, or of the whole page."""
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(found["data"]))

    def print(self, file: Path) -> None:
        """Writes the page as it is printed: a PDF."""
        found = self.call("Page.printToPDF", preferCSSPageSize=True, printBackground=True)
        file.write_bytes(base64.b64decode(found["data"]))

    def call(self, method: str, **parameters: Any) -> Any:
        """One command of the protocol; events meanwhile are kept."""
        self._calls += 1
        command = {"id": self._calls, "method": method, "params": parameters}
        command |= {"sessionId": self._session} if self._session else {}
        os.write(self._send, json.dumps(command).encode() + b"\0")
        while True:
            message = self._message()
            if message.get("id") == self._calls:
                assert "error" not in message, message["error"]
                return message["result"]
            self._waiting.append(message)

    def _wait(self, event: str) -> None:
        """Until something has happened."""
        while (self._waiting.popleft() if self._waiting else self._message())["method"] != event:
            pass

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = os.read(self._receive, 1 << 20)
            assert more, "the browser has ended"
            self._rest += more
        text, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        if message.get("method") in kinds:
            self.complaints.append(json.dumps(message["params"]))
        return message


@contextmanager
def browser(program: str) -> Iterator[Browser]:
    """Starts a browser; it reads commands from descriptor 3 and answers on 4."""
    (read, send), (receive, write) = os.pipe(), os.pipe()
    # Its last child may still write to the profile while that is removed.
    with TemporaryDirectory(prefix="nestruct-browser-", ignore_cleanup_errors=True) as profile:
        shell = f'exec "$0" "$@" 3<&{read} 4>&{write}'
        command = ["bash", "-c", shell, program, *FLAGS.split(), f"--user-data-dir={profile}"]
        process = subprocess.Popen(
            [*command, "about:blank"], pass_fds=(read, write), stderr=subprocess.DEVNULL
        )
        os.close(read)
        os.close(write)
        try:
            yield Browser(receive, send)
        finally:
            os.write(send, b'{"id": 0, "method": "Browser.close"}\0')
            process.wait(20)
            os.close(send)
            os.close(receive)
