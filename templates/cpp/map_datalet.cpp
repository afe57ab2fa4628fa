// A std::map as a datalet: make && ./map_datalet 127.0.0.1:7000
#include "sartor_datalet.hpp"

#include <map>

class Map : public sartor::Datalet {
    std::map<std::string, std::string> pairs;

    // Hands on pairs from there to the end of the map or that key, as long as they are wanted.
    void each(std::map<std::string, std::string>::iterator from, const std::string* end, const sartor::Take& take) {
        for (; from != pairs.end() && (!end || from->first < *end); ++from) {
            if (!take(from->first, from->second)) return;
        }
    }

public:
    sartor::Capabilities capabilities() override {
        sartor::Capabilities said;
        said.set_name("map");
        said.set_ordered(true);  // std::string compares bytes as unsigned ones.
        return said;
    }

    std::optional<std::string> get(const std::string& key) override {
        auto found = pairs.find(key);
        if (found == pairs.end()) return std::nullopt;
        return found->second;
    }

    void put(std::string key, std::string value) override { pairs.insert_or_assign(std::move(key), std::move(value)); }

    void remove(const std::string& key) override { pairs.erase(key); }

    void walk(const std::string* after, const sartor::Take& take) override {
        each(after ? pairs.upper_bound(*after) : pairs.begin(), nullptr, take);
    }

    void scan(const std::string& start, const std::string* end, const sartor::Take& take) override {
        each(pairs.lower_bound(start), end, take);
    }

    uint64_t len() override { return pairs.size(); }

    void clear() override { pairs.clear(); }
};

int main(int argc, char** argv) {
    Map map;
    return sartor::main(map, argc, argv);
}
