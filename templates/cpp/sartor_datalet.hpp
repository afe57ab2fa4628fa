// Serves a store of yours to Sartor: the protocol of ../datalet.proto.
//
// Inherit from sartor::Datalet, and give one to sartor::main. Calls come one at a time, from one thread. What they throw
// is told to Sartor, whose replica then steps back and is filled again from the others.
#pragma once

#include "datalet.pb.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <iostream>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace sartor {

namespace pb = ::sartor::datalet::v1;
using pb::Capabilities;

constexpr uint32_t VERSION = 1;
constexpr size_t FRAME_BYTES_MAX = 64 << 20;
constexpr size_t CONNECTIONS_MAX = 16;

// Takes a pair; false: no more are wanted.
using Take = std::function<bool(const std::string& key, const std::string& value)>;

// A store. Keys and values are bytes of any kind.
class Datalet {
public:
    virtual ~Datalet() = default;
    // What it is; the version is filled in.
    virtual Capabilities capabilities() = 0;
    virtual std::optional<std::string> get(const std::string& key) = 0;
    virtual void put(std::string key, std::string value) = 0;
    // That it is not there is fine.
    virtual void remove(const std::string& key) = 0;
    // Hands on pairs from behind that key on (nullptr: from the start) in an order that stays. A pair that is there during
    // the whole walk must be seen, whatever is written between two calls.
    virtual void walk(const std::string* after, const Take& take) = 0;
    virtual uint64_t len() = 0;
    virtual void clear() = 0;
    // Of an ordered one: pairs with start <= key < end (nullptr: to the last) in key order. Its walks are in key order too,
    // and see what is put behind their place.
    virtual void scan(const std::string&, const std::string*, const Take&) { throw std::runtime_error("no key order is kept"); }
    // Of a durable one.
    virtual void commit(const std::string& /* mark */, bool /* durably */) { throw std::runtime_error("this is not durable"); }
    virtual std::optional<std::string> mark() { return std::nullopt; }
};

inline uint64_t new_generation() {
    std::random_device random;
    return ((uint64_t(random()) << 32) | random()) >> 1 | 1;
}

// What a store answers, by batches.
class Server {
    Datalet& store;
    uint64_t owner = 0;
    bool is_owned = false;
    uint64_t generation = new_generation();

    static void found(std::optional<std::string> value, pb::Result& result) {
        if (value) result.set_value(std::move(*value));
        else result.mutable_nothing();
    }

    // Takes as many pairs as a page holds, and looks at one more to see whether it is the last page.
    template <typename Asked, typename Each>
    static size_t page(const Asked& asked, pb::Pairs& page, Each each) {
        size_t size = 0;
        each([&](const std::string& key, const std::string& value) {
            uint64_t count = page.pairs_size();
            if (count > 0 && (count >= asked.pairs_max() || size >= asked.bytes_max())) {
                page.set_next(page.pairs(count - 1).key());
                return false;
            }
            auto* pair = page.add_pairs();
            pair->set_key(key);
            pair->set_value(value);
            size += key.size() + value.size();
            return true;
        });
        return size;
    }

    // Another owner cannot rely on what the one before knew, nor the other way round.
    void hello(const pb::Hello& hello, pb::Capabilities& said) {
        if (!is_owned || owner != hello.owner()) generation = new_generation();
        is_owned = true;
        owner = hello.owner();
        said = store.capabilities();
        said.set_version(VERSION);
    }

    // Does one operation; how many bytes of keys and values its result has.
    size_t run(pb::Operation& operation, pb::Result& result) {
        switch (operation.operation_case()) {
        case pb::Operation::kHello: hello(operation.hello(), *result.mutable_capabilities()); return 0;
        case pb::Operation::kGet: found(store.get(operation.get()), result); return result.value().size();
        case pb::Operation::kPut: {
            auto* pair = operation.mutable_put();
            store.put(std::move(*pair->mutable_key()), std::move(*pair->mutable_value()));
            break;
        }
        case pb::Operation::kDelete: store.remove(operation.delete_()); break;
        case pb::Operation::kWalk: {
            const auto& walk = operation.walk();
            const auto* after = walk.has_after() ? &walk.after() : nullptr;
            return page(walk, *result.mutable_pairs(), [&](const Take& take) { store.walk(after, take); });
        }
        case pb::Operation::kScan: {
            const auto& scan = operation.scan();
            const auto* end = scan.has_end() ? &scan.end() : nullptr;
            return page(scan, *result.mutable_pairs(), [&](const Take& take) { store.scan(scan.start(), end, take); });
        }
        case pb::Operation::kLen: result.set_count(store.len()); return 0;
        case pb::Operation::kClear: store.clear(); break;
        case pb::Operation::kCommit: store.commit(operation.commit().mark(), operation.commit().durably()); break;
        case pb::Operation::kMark: found(store.mark(), result); return 0;
        default: throw std::runtime_error("an unknown operation; is there a newer datalet.proto?");
        }
        result.mutable_done();
        return 0;
    }

public:
    explicit Server(Datalet& store) : store(store) {}

    // The results of a batch; `is_owner` tells whether who sent it is the owner, before and after.
    pb::Results answer(pb::Batch& batch, bool& is_owner) {
        pb::Results results;
        size_t size = 0;
        for (auto& operation : *batch.mutable_operations()) {
            auto* result = results.add_results();
            try {
                is_owner = is_owner || operation.has_hello();
                if (!is_owner) throw std::runtime_error("say hello first");
                size += run(operation, *result);
            } catch (const std::exception& error) {
                result->set_error(error.what());
                break;
            }
            if (batch.bytes_max() > 0 && size >= batch.bytes_max()) break;
        }
        results.set_generation(generation);
        return results;
    }
};

struct Connection {
    int socket;
    bool is_owner = false;
    std::string input = {};

    // Reads what is there, and answers whole batches. An error ends the connection.
    void attend(Server& server) {
        char bytes[1 << 16];
        auto got = recv(socket, bytes, sizeof bytes, 0);
        if (got < 0 && errno == EINTR) return;
        if (got <= 0) throw std::runtime_error("");
        input.append(bytes, got);
        while (input.size() >= 4) {
            auto at = [&](int i) { return size_t(uint8_t(input[i])) << (8 * i); };
            size_t size = at(0) | at(1) | at(2) | at(3);
            if (size > FRAME_BYTES_MAX) throw std::runtime_error("a frame that is too large; is that Sartor?");
            if (input.size() < 4 + size) return;
            pb::Batch batch;
            if (!batch.ParseFromArray(input.data() + 4, size)) throw std::runtime_error("a batch that cannot be read");
            input.erase(0, 4 + size);
            send_all(server.answer(batch, is_owner));
        }
    }

    void send_all(const pb::Results& results) {
        std::string frame(4, 0);
        results.AppendToString(&frame);
        for (int i = 0; i < 4; i++) frame[i] = char((frame.size() - 4) >> (8 * i));
        for (size_t sent = 0; sent < frame.size();) {
            auto done = send(socket, frame.data() + sent, frame.size() - sent, MSG_NOSIGNAL);
            if (done < 0 && errno == EINTR) continue;
            if (done <= 0) throw std::runtime_error("an answer is not taken");
            sent += done;
        }
    }
};

// A socket that listens at HOST:PORT, or at the path of a Unix socket.
inline int listen_at(const std::string& address) {
    auto failed = [&](const char* why) -> int { throw std::runtime_error("cannot listen at " + address + ": " + why); };
    if (address[0] == '/') {
        sockaddr_un place = {};
        place.sun_family = AF_UNIX;
        if (address.size() >= sizeof place.sun_path) return failed("the path is too long");
        std::memcpy(place.sun_path, address.data(), address.size());
        struct stat found;
        // A process that is no more left it.
        if (stat(address.c_str(), &found) == 0 && S_ISSOCK(found.st_mode)) unlink(address.c_str());
        int listener = socket(AF_UNIX, SOCK_STREAM, 0);
        if (bind(listener, (sockaddr*)&place, sizeof place) || listen(listener, 64)) return failed(std::strerror(errno));
        return listener;
    }
    auto colon = address.rfind(':');
    if (colon == std::string::npos) return failed("HOST:PORT is wanted");
    addrinfo wanted = {}, *places = nullptr;
    wanted.ai_socktype = SOCK_STREAM;
    if (int error = getaddrinfo(address.substr(0, colon).c_str(), address.substr(colon + 1).c_str(), &wanted, &places))
        return failed(gai_strerror(error));
    int listener = socket(places->ai_family, SOCK_STREAM, 0), one = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    int error = bind(listener, places->ai_addr, places->ai_addrlen) || listen(listener, 64);
    freeaddrinfo(places);
    return error ? failed(std::strerror(errno)) : listener;
}

// Serves until the process ends.
inline void serve(Datalet& store, const std::string& address) {
    Server server(store);
    int listener = listen_at(address);
    std::vector<Connection> connections;
    auto close_at = [&](size_t place) {
        close(connections[place].socket);
        connections.erase(connections.begin() + place);
    };
    for (;;) {
        std::vector<pollfd> wanted = {{listener, POLLIN, 0}};
        for (auto& connection : connections) wanted.push_back({connection.socket, POLLIN, 0});
        if (poll(wanted.data(), wanted.size(), -1) < 0) continue;
        // From the last to the first, so that one that goes leaves the places of the others.
        for (size_t i = connections.size(); i-- > 0;) {
            if (i >= connections.size() || connections[i].socket != wanted[i + 1].fd || !wanted[i + 1].revents) continue;
            bool was_owner = connections[i].is_owner;
            try {
                connections[i].attend(server);
            } catch (const std::exception& error) {
                if (*error.what()) std::cerr << "a connection ends: " << error.what() << std::endl;
                close_at(i);
                continue;
            }
            if (connections[i].is_owner && !was_owner) {
                int mine = connections[i].socket;
                for (size_t other = connections.size(); other-- > 0;)
                    if (connections[other].is_owner && connections[other].socket != mine) close_at(other);
            }
        }
        if (wanted[0].revents) {
            int socket = accept(listener, nullptr, nullptr), one = 1;
            if (socket < 0) continue;
            setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
            timeval patience = {30, 0};  // For who does not read what it asked for.
            setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
            if (connections.size() >= CONNECTIONS_MAX) close_at(connections[0].is_owner ? 1 : 0);
            connections.push_back({socket});
        }
    }
}

// Serves at the address that the command line names.
inline int main(Datalet& store, int argc, char** argv) {
    if (argc != 2 || !*argv[1]) {
        std::cerr << "usage: " << argv[0] << " HOST:PORT, or /PATH/OF/SOCKET" << std::endl;
        return 2;
    }
    try {
        serve(store, argv[1]);
    } catch (const std::exception& error) {
        std::cerr << error.what() << std::endl;
    }
    return 1;
}

}  // namespace sartor
