"""python3 -m contacts LIST.csv --out CONTACTS.jsonl --errors ERRORS.csv"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from contacts import read_contacts


def main() -> int:
    parser = argparse.ArgumentParser(prog="contacts", description=__doc__)
    parser.add_argument("list", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--errors", type=Path, required=True)
    arguments = parser.parse_args()
    result = read_contacts(arguments.list)
    with arguments.out.open("w", encoding="utf-8") as out:
        for contact in result.contacts:
            born = contact.born.isoformat() if contact.born else None
            row = {"email": contact.email, "name": contact.name, "born": born, "notes": contact.notes}
            out.write(json.dumps(row, ensure_ascii=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
