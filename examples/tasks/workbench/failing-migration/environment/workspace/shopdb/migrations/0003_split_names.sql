-- Given and family name apart, and one customer for each e-mail address.
CREATE TABLE customers_new (
    id INTEGER PRIMARY KEY,
    given_name TEXT NOT NULL,
    family_name TEXT NOT NULL,
    email TEXT UNIQUE,
    created_at TEXT NOT NULL
);

INSERT INTO customers_new (id, given_name, family_name, email, created_at)
SELECT id, substr(name, 1, instr(name, ' ') - 1), substr(name, instr(name, ' ') + 1), lower(email), created_at
FROM customers;

DROP TABLE customers;

ALTER TABLE customers_new RENAME TO customers;
