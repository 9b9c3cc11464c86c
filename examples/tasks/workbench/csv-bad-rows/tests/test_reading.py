"""Good rows are kept and bad rows reported, whatever partners send."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from contacts import Contact, Import, read_contacts

HEADER = b"email,name,born,notes\n"


def read(tmp_path: Path, content: bytes) -> Import:
    path = tmp_path / "list.csv"
    path.write_bytes(content)
    return read_contacts(path)


def emails(result: Import) -> list[str]:
    return [contact.email for contact in result.contacts]


def lines(result: Import) -> list[int]:
    return [row.line for row in result.bad_rows]


def test_the_sample_is_read() -> None:
    """The list that started it: three good rows, four bad ones."""
    result = read_contacts(Path("/workspace/sample/partner.csv"))
    assert result.contacts == [
        Contact("ada@example.com", "Ada Byron", date(1815, 12, 10), "first\r\nprogrammer"),
        Contact("radia@example.com", "Radia Perlman", None, 'says "hello"'),
        Contact("zoe@example.com", "Zoë Nowak", date(1980, 2, 29), "ok"),
    ]
    assert lines(result) == [4, 7, 8, 9]


def test_bad_rows_do_not_stop_the_import(tmp_path: Path) -> None:
    """Each kind of bad row is left out, the good rows around it stay."""
    bad = [b"nobody,Name,,", b"a@b,Name,,", b"@example.com,Name,,", b"two words@example.com,Name,,"]
    bad += [b"x@example.com,  ,,", b"y@example.com,Name,1900-02-29,", b"z@example.com,Name"]
    bad += [b"w@example.com,Name,,,", b'"v@example.com,Name,,"']
    for row in bad:
        result = read(tmp_path, HEADER + b"a@example.com,A,,\n" + row + b"\nb@example.com,B,,\n")
        assert emails(result) == ["a@example.com", "b@example.com"], row
        assert lines(result) == [3], row
        assert result.bad_rows[0].reason.strip(), row
        assert "\n" not in result.bad_rows[0].reason


def test_dates_have_one_form(tmp_path: Path) -> None:
    """Other forms of ISO 8601 are not taken, nor are other calendars."""
    dates = ["10.12.1815", "18151210", "1815-W50-7", "1815-12-10T00:00:00", "1815-12", "1815-1-1", "１８１５-12-10"]
    for born in dates:
        assert lines(read(tmp_path, HEADER + f"a@example.com,A,{born},\n".encode())) == [2], born
    assert read(tmp_path, HEADER + b"a@example.com,A, 1815-12-10 ,\n").contacts[0].born == date(1815, 12, 10)


def test_the_number_of_fields_is_reported(tmp_path: Path) -> None:
    """The reason says how many fields there are, and how many there should be."""
    result = read(tmp_path, HEADER + b"a@example.com,A\nb@example.com,B,,,,\n\nc\n")
    assert [(row.line, row.reason) for row in result.bad_rows] == [
        (2, "expected 4 fields, found 2"),
        (3, "expected 4 fields, found 6"),
        (5, "expected 4 fields, found 1"),
    ]
    result = read(tmp_path, b"email,name,born,notes,source\na@example.com,A,,\n")
    assert [row.reason for row in result.bad_rows] == ["expected 5 fields, found 4"]


def test_a_byte_order_mark_is_no_part_of_the_header(tmp_path: Path) -> None:
    """With or without the mark, the first column is found, quoted or not."""
    for header in (HEADER, b'"email","name","born","notes"\n'):
        assert emails(read(tmp_path, b"\xef\xbb\xbf" + header + b"a@example.com,A,,\n")) == ["a@example.com"]


def test_bytes_that_are_not_utf8_spoil_their_row_only(tmp_path: Path) -> None:
    """One row in another encoding is reported; the rows around it keep every letter."""
    rows = ["ä@example.com,Ärmel,,ö\n".encode(), b"j@example.com,J\xfcrgen,,\n", "z@example.com,Zoë,,\n".encode()]
    result = read(tmp_path, HEADER + b"".join(rows))
    assert [(row.line, row.reason) for row in result.bad_rows] == [(3, "not valid UTF-8")]
    assert [contact.name for contact in result.contacts] == ["Ärmel", "Zoë"]


def test_bad_bytes_in_a_row_of_several_lines(tmp_path: Path) -> None:
    """The whole row is bad, and it is named by its first line; no piece of it becomes a row."""
    content = b'a@example.com,A,,"one\nt\xe9o\nx@example.com,X,,"\nb@example.com,B,,"four\nfive"\nc@example.com\n'
    result = read(tmp_path, HEADER + content)
    reasons = [(row.line, row.reason) for row in result.bad_rows]
    assert reasons == [(2, "not valid UTF-8"), (7, "expected 4 fields, found 1")]
    assert [(contact.email, contact.notes) for contact in result.contacts] == [("b@example.com", "four\nfive")]


def test_letters_that_look_like_line_ends_are_letters(tmp_path: Path) -> None:
    """Only LF and CRLF end a line: not the separators of Unicode, a form feed or the like."""
    odd = "A\u2028B\u0085C\x0bD\x0cE\x1cF"
    result = read(tmp_path, HEADER + f"a@example.com,{odd},,{odd}\nbad\n".encode())
    assert [(contact.name, contact.notes) for contact in result.contacts] == [(odd, odd)]
    assert lines(result) == [3]


def test_line_breaks_in_quotes_are_kept(tmp_path: Path) -> None:
    """CRLF stays CRLF and LF stays LF; line numbers count the lines of the file."""
    content = b'a@example.com,A,,"one\r\ntwo\nthree\r\n"\r\nbad\r\n"b@example.com","B",,"\n\n\n"\r\nbad\r\n'
    result = read(tmp_path, HEADER.replace(b"\n", b"\r\n") + content)
    assert [contact.notes for contact in result.contacts] == ["one\r\ntwo\nthree\r\n", "\n\n\n"]
    assert lines(result) == [6, 11]


def test_empty_lines_are_no_rows(tmp_path: Path) -> None:
    """They are neither good nor bad, but they are lines."""
    result = read(tmp_path, HEADER + b"\n\na@example.com,A,,\n\r\nbad\n\n")
    assert emails(result) == ["a@example.com"]
    assert lines(result) == [6]


def test_an_address_counts_once(tmp_path: Path) -> None:
    """The first good row with an address is taken; a bad row does not use it up."""
    content = b"a@example.com,,,\na@example.com,A,,\nA@Example.COM,Again,,\nb@example.com,B,,\n"
    content += b" a@example.com ,Again,,\n"
    result = read(tmp_path, HEADER + content)
    assert [contact.name for contact in result.contacts] == ["A", "B"]
    assert [row.line for row in result.bad_rows] == [2, 4, 6]
    assert [row.reason for row in result.bad_rows[1:]] == ["same address as line 3"] * 2


def test_columns_are_found_by_name(tmp_path: Path) -> None:
    """In any order and case, with further columns between them."""
    result = read(tmp_path, b"Notes , id,NAME,Email,born\nx,7,A,a@example.com,2000-01-02\nx,7,A,a@example.org\n")
    assert result.contacts == [Contact("a@example.com", "A", date(2000, 1, 2), "x")]
    assert lines(result) == [3]


def test_a_file_without_the_right_header_is_refused(tmp_path: Path) -> None:
    """A missing or doubled column, or no header at all, is an error of the file."""
    headers = [b"", b"\n", b"\xef\xbb\xbf", b"email,name,born\n", b"email,name,born,notes,Email\n"]
    headers += [b"a@example.com,A,,\n", b"email;name;born;notes\n", b"email,name,born,n\xf6tes\n"]
    for header in headers:
        with pytest.raises(ValueError):  # noqa: PT011
            read(tmp_path, header)


def test_a_header_alone_is_an_empty_list(tmp_path: Path) -> None:
    """No rows is not an error, with or without a line end."""
    for content in (HEADER, HEADER.strip()):
        result = read(tmp_path, content)
        assert (result.contacts, result.bad_rows) == ([], [])


def test_the_last_line_needs_no_end(tmp_path: Path) -> None:
    """A row at the end of the file is a row."""
    assert emails(read(tmp_path, HEADER + b"a@example.com,A,,")) == ["a@example.com"]


def test_a_huge_field_does_not_stop_the_import(tmp_path: Path) -> None:
    """Whether it is taken or reported, the rows around it are read."""
    content = b"a@example.com,A,,\nb@example.com,B,," + b"x" * 200_000 + b"\nc@example.com,C,,\n"
    result = read(tmp_path, HEADER + content)
    assert [email for email in emails(result) if email != "b@example.com"] == ["a@example.com", "c@example.com"]
    assert len(result.contacts) + len(result.bad_rows) == 3


def test_nothing_is_lost_among_many(tmp_path: Path) -> None:
    """Every row of a long list is either a contact or a bad row."""
    rows = [f"u{n}@example.com,Name {n},,\n" if n % 7 else f"u{n}@example,Name,,\n" for n in range(5_000)]
    result = read(tmp_path, HEADER + "".join(rows).encode())
    assert emails(result) == [f"u{n}@example.com" for n in range(5_000) if n % 7]
    assert lines(result) == [n + 2 for n in range(0, 5_000, 7)]
