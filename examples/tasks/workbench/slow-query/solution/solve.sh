#!/bin/bash
set -euo pipefail
python3 /solution/apply.py
cat >> /workspace/shop/schema.sql <<'SQL'

CREATE INDEX IF NOT EXISTS orders_customer ON orders (customer_id);
CREATE INDEX IF NOT EXISTS items_order ON items (order_id);
CREATE INDEX IF NOT EXISTS payments_order ON payments (order_id);
SQL
