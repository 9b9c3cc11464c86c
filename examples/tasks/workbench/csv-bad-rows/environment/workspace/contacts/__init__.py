"""Import contact lists from CSV."""

from contacts.importer import BadRow, Import, read_contacts
from contacts.rows import Contact

__all__ = ["BadRow", "Contact", "Import", "read_contacts"]
