from db.store import load

# TODO: read the path from the command line
print(load())
