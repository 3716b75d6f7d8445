def collect(*a): print("collect", a)
