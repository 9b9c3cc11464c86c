"""python3 -m contactsync FEED.jsonl WAREHOUSE.db"""

from __future__ import annotations

import sys
from pathlib import Path

from contactsync import Feed, Store, sync


def main(feed: str, warehouse: str) -> None:
    store = Store(Path(warehouse))
    entries = sync(Feed.load(Path(feed)), store)
    print(f"{entries} entries read, {store.count()} contacts in the warehouse")
    store.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
