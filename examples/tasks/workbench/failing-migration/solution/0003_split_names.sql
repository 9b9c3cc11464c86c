-- Given and family name apart, and one customer for each e-mail address.
DROP TABLE IF EXISTS customers_new; -- the first attempt in production was not undone

CREATE TABLE customers_new (
    id INTEGER PRIMARY KEY,
    given_name TEXT NOT NULL,
    family_name TEXT NOT NULL,
    email TEXT UNIQUE,
    created_at TEXT NOT NULL
);

CREATE TEMP TABLE cleaned AS
SELECT id, trim(coalesce(name, '')) AS name, nullif(lower(trim(email)), '') AS email, created_at FROM customers;

CREATE TEMP TABLE merged AS
SELECT
    id,
    CASE WHEN email IS NULL THEN id ELSE min(id) OVER (PARTITION BY email) END AS into_id,
    name,
    email,
    created_at
FROM cleaned;

INSERT INTO customers_new (id, given_name, family_name, email, created_at)
SELECT
    into_id,
    CASE instr(name, ' ') WHEN 0 THEN name ELSE substr(name, 1, instr(name, ' ') - 1) END,
    CASE instr(name, ' ') WHEN 0 THEN '' ELSE trim(substr(name, instr(name, ' '))) END,
    email,
    created_at
FROM (
    SELECT
        into_id,
        coalesce((
            SELECT name FROM merged AS named WHERE named.into_id = merged.into_id AND named.name <> '' ORDER BY id LIMIT 1
        ), '') AS name,
        email,
        min(created_at) AS created_at
    FROM merged
    GROUP BY into_id
);

UPDATE orders SET customer_id = (SELECT into_id FROM merged WHERE merged.id = orders.customer_id);
UPDATE notes SET customer_id = (SELECT into_id FROM merged WHERE merged.id = notes.customer_id);

DROP TABLE merged;
DROP TABLE cleaned;
DROP TABLE customers;
ALTER TABLE customers_new RENAME TO customers;
CREATE INDEX customers_created_at ON customers (created_at);
