import csv

with open("stock.csv", newline="") as file:
    rows = [(name, int(count)) for name, count in csv.reader(file)]

for name, count in rows:
    print(name, count)
print("sum", sum(count for _, count in rows))
