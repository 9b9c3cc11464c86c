"""python3 sample/load.py shop.db: make a database like the production one."""

import sqlite3
import sys
from pathlib import Path

with sqlite3.connect(sys.argv[1]) as db:
    db.executescript((Path(__file__).parent / "production.sql").read_text())
