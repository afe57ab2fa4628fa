"""A dict as a datalet: python3 dict_datalet.py 127.0.0.1:7000"""

from bisect import bisect_right

from sartor_datalet import Datalet, main


class Dict(Datalet):
    name = "dict"

    def __init__(self):
        self.pairs = {}
        self.order = []  # The keys that walks go along: those that were there when the last walk began, sorted.
        self.has_new = False

    def get(self, key):
        return self.pairs.get(key)

    def put(self, key, value):
        self.has_new = self.has_new or key not in self.pairs
        self.pairs[key] = value

    def delete(self, key):
        self.pairs.pop(key, None)

    def walk(self, after):
        # A walk sees what is there all the time: new keys can wait for the next one, and deleted ones are passed over.
        if after is None and self.has_new:
            self.order, self.has_new = sorted(self.pairs), False
        first = 0 if after is None else bisect_right(self.order, after)
        for index in range(first, len(self.order)):
            value = self.pairs.get(self.order[index])
            if value is not None:
                yield self.order[index], value

    def len(self):
        return len(self.pairs)

    def clear(self):
        self.pairs, self.order, self.has_new = {}, [], False


if __name__ == "__main__":
    main(Dict())
