CREATE TABLE order_log (
    order_id INTEGER NOT NULL,
    family_name TEXT NOT NULL,
    text TEXT NOT NULL
);

CREATE TRIGGER order_deleted AFTER DELETE ON orders
BEGIN
    INSERT INTO order_log (order_id, family_name, text)
    VALUES (OLD.id, coalesce((SELECT family_name FROM customers WHERE id = OLD.customer_id), ''), 'deleted; kept for audit');
END;
