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
