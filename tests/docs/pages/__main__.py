"""`python -m tests.docs.pages`: write everything in docs/ that comes from the code."""

from . import DOCS, WHOLE, WITH_PARTS, current

for page in (*WHOLE, *WITH_PARTS):
    text = current(page)
    if not page.is_file() or page.read_text(encoding="utf-8") != text:
        page.parent.mkdir(exist_ok=True)
        page.write_text(text, encoding="utf-8")
        print(page.relative_to(DOCS.parent))
