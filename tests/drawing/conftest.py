"""A browser for the tests of pages."""

import contextlib
import os
import shutil
import sys

import pytest


@pytest.fixture(scope="session")
def browser():
    """A headless Chromium, for `make test-page`. What `make test` checks does not depend on one that may be there."""
    if os.environ.get("CKPTOOL_REQUIRE_BROWSER") != "1":
        pytest.skip("needs a browser (make test-page)")
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert program, "no Chromium is installed"
    with contextlib.ExitStack() as stack:
        with much_address_space():
            playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextlib.contextmanager
def much_address_space():
    """Lift the limit of `tests/conftest.py` for the programs that are started here: Chromium reserves terabytes."""
    if sys.platform != "linux":
        yield
        return
    import resource

    limit, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


@pytest.fixture
def show(browser, tmp_path):
    """Open a page as a file. The test fails if its script fails or it asks for anything."""
    context = browser.new_context(viewport={"width": 1200, "height": 800})
    tab = context.new_page()
    trouble = []
    tab.on("pageerror", lambda error: trouble.append(str(error)))
    tab.on("console", lambda message: trouble.append(message.text) if message.type == "error" else None)
    tab.on("request", lambda request: trouble.append(request.url) if not request.url.startswith("file:") else None)

    def show(page):
        (tmp_path / "page.html").write_text(page, encoding="utf-8")
        tab.goto((tmp_path / "page.html").as_uri())
        return tab

    yield show
    context.close()
    assert trouble == []
