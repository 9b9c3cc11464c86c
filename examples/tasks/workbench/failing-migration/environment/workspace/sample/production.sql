-- A cut of the production database after the failed deployment, with changed names.
CREATE TABLE customers (
    id INTEGER PRIMARY KEY,
    name TEXT,
    email TEXT,
    created_at TEXT NOT NULL
);

CREATE INDEX customers_created_at ON customers (created_at);

CREATE TABLE orders (
    id INTEGER PRIMARY KEY,
    customer_id INTEGER NOT NULL REFERENCES customers (id) ON DELETE CASCADE,
    total_cents INTEGER NOT NULL,
    placed_at TEXT NOT NULL
);

CREATE INDEX orders_customer ON orders (customer_id);

CREATE TABLE notes (
    id INTEGER PRIMARY KEY,
    customer_id INTEGER NOT NULL REFERENCES customers (id) ON DELETE CASCADE,
    text TEXT NOT NULL
);

CREATE TABLE schema_migrations (name TEXT PRIMARY KEY, sha256 TEXT NOT NULL);
INSERT INTO schema_migrations VALUES
    ('0001_customers_and_orders.sql', 'fc3a6c4a86398d4b0218848d92586437d97349bbc5f8d90fd044bc76f5a33abb'),
    ('0002_notes.sql', '3f9493f5d73b983c04173869e9d20fd282035f78b6691a17272839e7ed847c7a');

CREATE TABLE customers_new (
    id INTEGER PRIMARY KEY,
    given_name TEXT NOT NULL,
    family_name TEXT NOT NULL,
    email TEXT UNIQUE,
    created_at TEXT NOT NULL
);

INSERT INTO customers (id, name, email, created_at) VALUES
    (1, 'Ada Byron', 'ada@example.com', '2021-02-03'),
    (2, 'Grace Murray Hopper', 'Grace@Example.com', '2021-05-09'),
    (3, NULL, 'info@example.org', '2021-06-01'),
    (4, 'Plato', 'plato@example.gr', '2021-07-12'),
    (5, 'Ada King', 'ADA@example.com ', '2020-01-01'),
    (6, 'Radia Perlman', NULL, '2022-01-30'),
    (7, 'Walk-in customer', NULL, '2022-02-01'),
    (8, '  ', 'grace@example.com', '2022-03-03');

INSERT INTO orders (id, customer_id, total_cents, placed_at) VALUES
    (100, 1, 1250, '2021-02-04'),
    (101, 5, 990, '2021-03-01'),
    (102, 2, 4500, '2021-05-09'),
    (103, 8, 700, '2022-03-04'),
    (104, 6, 12000, '2022-04-01'),
    (105, 3, 100, '2022-05-05');

INSERT INTO notes (id, customer_id, text) VALUES
    (10, 5, 'prefers letters'),
    (11, 8, 'call after noon');
