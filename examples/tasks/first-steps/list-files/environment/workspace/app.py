print("stock")
