"""Tables, migrations, blobs."""
