"""Checks the links of a built site: each leads to a file of the site and, if it has an anchor, to a heading with it."""

import os
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The links of a page, in order and once each, and the places that links may name."""

    def __init__(self, text):
        super().__init__()
        self.links, self.places = {}, set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name == "id" or (tag == "a" and name == "name"):
                self.places.add(value)
            elif name in ("href", "src") and value:
                self.links[value] = None


def as_written(link, page, origin_of):
    """A link of a built page as its source has it: with the names of sources instead of those of built pages."""
    path, _, place = link.partition("#")
    if path.endswith(".html"):
        target = os.path.normpath(os.path.join(os.path.dirname(page), path))
        if target in origin_of:
            path = os.path.relpath(origin_of[target], os.path.dirname(origin_of[page]) or ".")
    return f"{path}#{place}" if place else path


def broken(site, origin_of):
    """["docs/a.md: the link b.md#c leads nowhere: ..."] of a built site. origin_of: built page -> its source."""
    pages = {str(p.relative_to(site)): Page(p.read_text()) for p in sorted(site.rglob("*.html"))}
    found = []
    for name, page in pages.items():
        if name == "404.html":  # its links are absolute, as it is shown at any address
            continue
        source = origin_of.get(name, name)
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = os.path.normpath(os.path.join(os.path.dirname(name), unquote(parts.path))) if parts.path else name
            if (site / target).is_dir():
                target = os.path.normpath(os.path.join(target, "index.html"))
            why = None
            if target.startswith("..") or not (site / target).exists():
                why = f"the site has no {target}"
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].places:
                why = f"no heading of {origin_of.get(target, target)} has that anchor"
            if why:
                found.append(f"{source}: the link {as_written(link, name, origin_of)} leads nowhere: {why}")
    return found
