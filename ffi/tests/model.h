// Runs a few threads in every order, with every value that their loads may see.
//
// Threads are fibres that stop before each operation on shared memory; a program is run from its
// start for each choice of who goes on and what a load returns, until no choice leads to a state
// that is new. Memory is that of C++: a cell is the list of what was stored there; a load gives any
// entry of which its thread does not know a later one; who acquires what was released knows what
// the one who released it knew; a plain access that does not know the latest write, or of which the
// next write does not know, is a race. Sequentially consistent accesses to one cell know each
// other. Stores come to a cell in the order in which they run, loads run in the order of the
// program: executions in which they do not are left out.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace jaxcc::model {

constexpr int kMostThreads = 4;
constexpr int kMostCells = 64;

// What a thread knows: of each cell its latest entry, of each thread its latest plain read.
struct View {
  std::array<uint8_t, kMostCells> seen{};
  std::array<uint8_t, kMostThreads> reads{};

  void join(const View& other) {
    for (int i = 0; i < kMostCells; ++i) seen[i] = std::max(seen[i], other.seen[i]);
    for (int i = 0; i < kMostThreads; ++i) reads[i] = std::max(reads[i], other.reads[i]);
  }
};

struct Result {
  std::string fault;  // of the first run that went wrong, with its steps; empty if none did
  int64_t states = 0;
  int64_t runs = 0;
};

// What stands in the place of a program's orders, to see that they matter.
enum class Orders { kAsWritten, kNotConsistent, kNotReleased };

class World {
 public:
  using Bodies = std::vector<std::function<void()>>;

  // `program` makes cells, and returns what the threads do. Each thread may lose its patience so
  // many times, whenever it waits.
  Result explore(const std::function<Bodies(World&)>& program, int impatient = 0,
                 Orders orders = Orders::kAsWritten);

  int cell(uint64_t value);
  // The cell of a word in memory, which is not touched.
  int cell(const void* word, uint64_t value);
  int at(const void* word) const;

  // What atomics do.
  uint64_t load(int cell, std::memory_order order);
  void store(int cell, uint64_t value, std::memory_order order);
  uint64_t update(int cell, const std::function<uint64_t(uint64_t)>& f, std::memory_order order);
  bool exchange_if(int cell, uint64_t* expected, uint64_t desired, std::memory_order order);
  // What plain variables do.
  uint64_t read(int cell);
  void write(int cell, uint64_t value);

  // After a load that did not bring what the caller polls for: waits until there is more to see.
  // False if the caller loses its patience, which some never do.
  bool poll_again(bool patient = false);
  // A futex on the 32 bits of the cell from `shift` on. False if the caller loses its patience.
  bool sleep(int cell, int shift, uint32_t seen);
  void wake(int cell);
  // Said where the caller's own state is `known` and nothing else: what it did before is forgotten,
  // and it may lose its patience so many times more.
  void forget(uint64_t known, int impatient = 0) {
    me().history = known;
    me().patience = impatient;
  }
  // Ends the run with a fault unless it holds.
  void check(bool holds, const std::string& fault);
  int thread() const { return running_; }

 private:
  struct Stop {};
  struct Entry {
    uint64_t value;
    View view;
  };
  struct Cell {
    std::vector<Entry> entries;
    std::array<uint8_t, kMostThreads> reads{};  // of each thread, its latest plain read
    View futex;                                 // what those know who come to sleep
  };
  struct Thread {
    jmp_buf place;
    ucontext_t context;  // of its start
    std::unique_ptr<char[]> stack = std::make_unique<char[]>(kStack);
    std::function<void()> body;
    View view;
    uint64_t history = 0;  // of what its operations returned: all that it can know
    uint64_t before = 0;   // the same before its last load
    int loaded = -1;
    int polls = -1;    // the cell that has to change before it goes on
    int sleeps = -1;   // the cell on which it sleeps
    int patience = 0;  // how often it may lose it
    bool patient = false;
    bool chosen = false;  // to go on: its next operation needs no other choice
    bool done = false;
  };
  struct Choice {
    int taken;
    int count;
  };
  static constexpr size_t kStack = 1 << 18;

  static void enter(unsigned low, unsigned high);
  Thread& me() { return threads_[running_]; }
  void run(const std::function<Bodies(World&)>& program, int impatient);
  std::memory_order weakened(std::memory_order order) const;
  bool ready(const Thread& thread) const;
  bool has_news(const Thread& thread) const;
  void yield();
  void start(int thread);
  void go_on(int thread);
  void step(int cell, bool writes);
  int choose(int count);
  bool next();
  uint64_t digest() const;
  void fail(const std::string& fault);
  void note(const char* what, int cell, uint64_t value);
  int visible(int cell, std::memory_order order);
  void learn(int cell, int entry, std::memory_order order);
  void append(int cell, uint64_t value, std::memory_order order, const View* earlier);

  std::vector<Cell> cells_;
  std::vector<std::pair<const void*, int>> words_;
  std::array<Thread, kMostThreads> threads_;
  Orders orders_ = Orders::kAsWritten;
  int count_ = 0;
  int running_ = -1;
  bool stopping_ = false;
  // Of each cell, who has used it and whether anyone writes to it: what a cell's only user does to
  // it, and loads of what nobody changes, can be done at any time.
  std::array<uint8_t, kMostCells> users_{};
  std::array<bool, kMostCells> written_{};
  bool learnt_ = false;  // in this run
  View consistent_;      // what sequentially consistent accesses have seen
  jmp_buf scheduler_;
  std::vector<Choice> choices_;
  size_t taken_ = 0;
  std::unordered_set<uint64_t> visited_;
  std::vector<std::string> steps_;
  bool tell_ = false;
  std::string fault_;
};

// Ends the process unless the result has this fault, or none if it is empty.
void expect(const char* name, const Result& result, const std::string& fault);

// The world of the program that runs.
inline World* world = nullptr;

// std::atomic of an integer, in the world.
template <class T>
class Atomic {
 public:
  Atomic(T value = {}) { world->cell(this, static_cast<uint64_t>(value)); }
  Atomic(const Atomic&) = delete;

  T load(std::memory_order order = std::memory_order_seq_cst) const {
    return static_cast<T>(world->load(cell(), order));
  }
  void store(T value, std::memory_order order = std::memory_order_seq_cst) {
    world->store(cell(), static_cast<uint64_t>(value), order);
  }
  T exchange(T value, std::memory_order order = std::memory_order_seq_cst) {
    return update([&](T) { return value; }, order);
  }
  T fetch_add(T x, std::memory_order order = std::memory_order_seq_cst) {
    return update([&](T old) { return old + x; }, order);
  }
  T fetch_sub(T x, std::memory_order order = std::memory_order_seq_cst) {
    return update([&](T old) { return old - x; }, order);
  }
  T fetch_or(T x, std::memory_order order = std::memory_order_seq_cst) {
    return update([&](T old) { return old | x; }, order);
  }
  T fetch_xor(T x, std::memory_order order = std::memory_order_seq_cst) {
    return update([&](T old) { return old ^ x; }, order);
  }
  bool compare_exchange_weak(T& expected, T desired,
                             std::memory_order order = std::memory_order_seq_cst) {
    uint64_t old = static_cast<uint64_t>(expected);
    const bool same = world->exchange_if(cell(), &old, static_cast<uint64_t>(desired), order);
    expected = static_cast<T>(old);
    return same;
  }

 private:
  int cell() const { return world->at(this); }
  template <class F>
  T update(const F& f, std::memory_order order) {
    return static_cast<T>(world->update(
        cell(), [&](uint64_t old) { return static_cast<uint64_t>(f(static_cast<T>(old))); },
        order));
  }

  alignas(8) uint64_t place_ = 0;  // words in it have addresses
};

}  // namespace jaxcc::model
