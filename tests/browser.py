"""Chromium for tests of pages."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
    "--window-size=1100,1400",
)  # fmt: skip


def ensure_chromium() -> None:
    """Install Debian's Chromium if it is missing and this process is root; otherwise skip the test."""
    if shutil.which("chromium") and shutil.which("chromedriver"):
        return
    script = Path(__file__).parent / "install_chromium.sh"
    if not shutil.which("apt-get") or os.geteuid() != 0:
        pytest.skip(f"Chromium is not installed, and only root can install it: tests/{script.name}")
    done = subprocess.run([script], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"Chromium cannot be installed: {done.stderr.decode(errors='replace').strip()[-300:]}")


@contextmanager
def chromium() -> Iterator[Any]:
    """A Selenium driver with its own profile."""
    ensure_chromium()
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    with tempfile.TemporaryDirectory(prefix="transnet-chromium-", ignore_cleanup_errors=True) as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium")
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        try:
            yield driver
        finally:
            driver.quit()
