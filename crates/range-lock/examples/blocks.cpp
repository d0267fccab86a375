// A file cache in miniature: threads copy blocks of a shared buffer, each under a lock on the bytes it touches.
// Built and run by `capi.sh` against the installed header, library and pkg-config file.
#include <heddle_range_lock.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

namespace {

// The range as C++ would have it: released when it goes out of scope.
class Range {
  public:
    Range(heddle_range_lock *lock, std::uint64_t start, std::uint64_t end, bool shared, std::uint64_t who)
        : lock_(lock) {
        if (heddle_range_acquire(lock, start, end, shared, who, &held_) != HEDDLE_RANGE_OK) {
            std::fputs("no memory\n", stderr);
            std::exit(1);
        }
    }
    Range(const Range &) = delete;
    Range &operator=(const Range &) = delete;
    ~Range() { heddle_range_release(lock_, held_); }

  private:
    heddle_range_lock *lock_;
    heddle_range *held_ = nullptr;
};

void expect(bool holds, const char *what) {
    if (!holds) {
        std::fprintf(stderr, "failed: %s\n", what);
        std::exit(1);
    }
}

} // namespace

int main() {
    constexpr std::uint64_t cells = 512, threads = 4, rounds = 5000;
    std::unique_ptr<heddle_range_lock, decltype(&heddle_range_lock_free)> lock(heddle_range_lock_new(),
                                                                              heddle_range_lock_free);
    expect(lock != nullptr, "a lock");
    std::vector<std::uint64_t> data(cells, 0);

    std::vector<std::thread> workers;
    for (std::uint64_t worker = 0; worker < threads; worker++) {
        workers.emplace_back([&, worker] {
            std::uint64_t seed = worker + 1;
            for (std::uint64_t round = 0; round < rounds; round++) {
                seed = seed * 6364136223846793005u + 1442695040888963407u;
                const std::uint64_t start = (seed >> 33) % (cells - 8), end = start + 1 + (seed >> 20) % 8;
                Range range(lock.get(), start, end, false, worker);
                for (std::uint64_t cell = start; cell < end; cell++) data[cell]++;
                for (std::uint64_t cell = start; cell < end; cell++) data[cell] += data[start] != 0 ? 0 : 1;
            }
        });
    }
    for (auto &worker : workers) worker.join();

    Range all(lock.get(), 0, HEDDLE_RANGE_END, true, 42);
    heddle_range *held = nullptr;
    expect(heddle_range_try_lock(lock.get(), 7, 9, false, 0, &held) == HEDDLE_RANGE_CONFLICT, "a conflict");
    expect(heddle_range_acquire_timeout(lock.get(), 7, 9, false, 0, 1000, &held) == HEDDLE_RANGE_TIMED_OUT,
           "a timeout");
    expect(heddle_range_try_lock(lock.get(), 9, 7, false, 0, &held) == HEDDLE_RANGE_EMPTY, "an empty range");
    bool found = false;
    heddle_range_holder holder{};
    expect(heddle_range_first_conflict(lock.get(), 7, 9, &found, &holder) == HEDDLE_RANGE_OK, "a look");
    expect(found && holder.payload == 42 && holder.shared && holder.end == HEDDLE_RANGE_END, "the holder");
    expect(heddle_range_try_lock(lock.get(), 7, 9, true, 0, &held) == HEDDLE_RANGE_OK, "a shared range");
    heddle_range_release(lock.get(), held);
    std::printf("%llu\n", static_cast<unsigned long long>(std::accumulate(data.begin(), data.end(), 0ull)));
    return 0;
}
