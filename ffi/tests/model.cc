// The checked longjmp of glibc takes a jump to another stack for an error.
#undef _FORTIFY_SOURCE

#include "model.h"

#include <cstdio>
#include <cstdlib>

namespace jaxcc::model {
namespace {

bool acquires(std::memory_order order) {
  return order == std::memory_order_acquire || order == std::memory_order_acq_rel ||
         order == std::memory_order_seq_cst;
}

bool releases(std::memory_order order) {
  return order == std::memory_order_release || order == std::memory_order_acq_rel ||
         order == std::memory_order_seq_cst;
}

uint64_t mix(uint64_t hash, uint64_t x) {
  hash = (hash ^ x) * 0x9e3779b97f4a7c15;
  return hash ^ hash >> 29;
}

}  // namespace

Result World::explore(const std::function<Bodies(World&)>& program, int impatient, Orders orders) {
  orders_ = orders;
  choices_.clear();
  visited_.clear();
  fault_.clear();
  users_ = {};
  written_ = {};
  Result result;
  do {
    learnt_ = false;
    run(program, impatient);
    ++result.runs;
    if (learnt_) {
      // All over again: more operations are choices now.
      choices_.clear();
      visited_.clear();
      fault_.clear();
    }
  } while (fault_.empty() && (learnt_ || next()));
  result.states = static_cast<int64_t>(visited_.size());
  if (!fault_.empty()) {
    tell_ = true;
    run(program, impatient);
    tell_ = false;
    result.fault = fault_;
    for (const std::string& step : steps_) result.fault += "\n  " + step;
  }
  return result;
}

// One run, by the choices that are there, then by the first of each.
void World::run(const std::function<Bodies(World&)>& program, int impatient) {
  world = this;
  cells_.clear();
  words_.clear();
  steps_.clear();
  fault_.clear();
  consistent_ = {};
  taken_ = 0;
  stopping_ = false;
  running_ = 0;
  const Bodies bodies = program(*this);
  count_ = static_cast<int>(bodies.size());
  for (int t = 0; t < count_; ++t) {
    Thread& thread = threads_[t];
    thread.body = bodies[t];
    thread.view = {};
    // Threads know what was there before them.
    for (size_t c = 0; c < cells_.size(); ++c) {
      thread.view.seen[c] = static_cast<uint8_t>(cells_[c].entries.size() - 1);
    }
    thread.history = thread.before = 0;
    thread.loaded = thread.polls = thread.sleeps = -1;
    thread.patience = impatient;
    thread.patient = thread.chosen = thread.done = false;
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = thread.stack.get();
    thread.context.uc_stack.ss_size = kStack;
    thread.context.uc_link = nullptr;
    const uint64_t self = reinterpret_cast<uint64_t>(this);
    makecontext(&thread.context, reinterpret_cast<void (*)()>(&World::enter), 2,
                static_cast<unsigned>(self), static_cast<unsigned>(self >> 32));
  }
  for (int t = 0; t < count_; ++t) start(t);
  for (;;) {
    if (!fault_.empty()) break;
    std::vector<int> able;
    bool left = false;
    for (int t = 0; t < count_; ++t) {
      if (threads_[t].done) continue;
      left = true;
      if (ready(threads_[t])) able.push_back(t);
    }
    if (!left) break;
    if (able.empty()) {
      fail("no thread can go on");
      break;
    }
    if (taken_ == choices_.size() && !visited_.insert(digest()).second && !tell_) break;
    go_on(able[choose(static_cast<int>(able.size()))]);
  }
  stopping_ = true;
  for (int t = 0; t < count_; ++t) {
    if (!threads_[t].done) go_on(t);
  }
}

void World::enter(unsigned low, unsigned high) {
  World* const self = reinterpret_cast<World*>(static_cast<uint64_t>(high) << 32 | low);
  const int thread = self->running_;
  try {
    self->threads_[thread].body();
  } catch (const Stop&) {
  }
  self->threads_[thread].done = true;
  _longjmp(self->scheduler_, 1);
}

// Runs a thread to its first operation.
void World::start(int thread) {
  running_ = thread;
  if (_setjmp(scheduler_) == 0) setcontext(&threads_[thread].context);
}

void World::go_on(int thread) {
  running_ = thread;
  if (_setjmp(scheduler_) == 0) _longjmp(threads_[thread].place, 1);
}

// Lets the scheduler choose who goes on.
void World::yield() {
  if (_setjmp(me().place) == 0) _longjmp(scheduler_, 1);
  if (stopping_) throw Stop{};
}

// Before each operation.
void World::step(int cell, bool writes) {
  const uint8_t user = static_cast<uint8_t>(1 << running_);
  const uint8_t others = users_[cell] & ~user;
  learnt_ |= !(users_[cell] & user) || (writes && !written_[cell]);
  users_[cell] |= user;
  written_[cell] |= writes;
  const bool chosen = std::exchange(me().chosen, false);
  if (others && written_[cell] && !chosen) yield();
}

bool World::has_news(const Thread& thread) const {
  return cells_[thread.polls].entries.size() - 1 > thread.view.seen[thread.polls];
}

bool World::ready(const Thread& thread) const {
  if (thread.sleeps >= 0) return thread.patience > 0;
  return thread.polls < 0 || (thread.patience > 0 && !thread.patient) || has_news(thread);
}

std::memory_order World::weakened(std::memory_order order) const {
  if (orders_ == Orders::kNotConsistent && order == std::memory_order_seq_cst) {
    return std::memory_order_acq_rel;
  }
  if (orders_ == Orders::kNotReleased && releases(order)) {
    return acquires(order) ? std::memory_order_acquire : std::memory_order_relaxed;
  }
  return order;
}

int World::choose(int count) {
  if (count == 1) return 0;
  if (taken_ == choices_.size()) choices_.push_back({0, count});
  return choices_[taken_++].taken;
}

// Goes on to the next choices; false if there are none.
bool World::next() {
  while (!choices_.empty() && choices_.back().taken + 1 == choices_.back().count) {
    choices_.pop_back();
  }
  if (choices_.empty()) return false;
  ++choices_.back().taken;
  return true;
}

// Of all that decides how the run can go on. What every thread knows to be past counts no longer.
uint64_t World::digest() const {
  View past;
  past.seen.fill(UINT8_MAX);
  past.reads.fill(UINT8_MAX);
  for (int t = 0; t < count_; ++t) {
    if (threads_[t].done) continue;
    for (int c = 0; c < kMostCells; ++c) {
      past.seen[c] = std::min(past.seen[c], threads_[t].view.seen[c]);
    }
    for (int r = 0; r < kMostThreads; ++r) {
      past.reads[r] = std::min(past.reads[r], threads_[t].view.reads[r]);
    }
  }
  uint64_t hash = 1;
  const auto add = [&](const View& view) {
    for (size_t c = 0; c < cells_.size(); ++c) {
      hash = mix(hash, view.seen[c] > past.seen[c] ? view.seen[c] - past.seen[c] : 0);
    }
    for (int r = 0; r < count_; ++r) {
      hash = mix(hash, view.reads[r] > past.reads[r] ? view.reads[r] - past.reads[r] : 0);
    }
  };
  for (int t = 0; t < count_; ++t) {
    const Thread& thread = threads_[t];
    hash = mix(hash, thread.done ? 1 : thread.history);
    if (thread.done) continue;
    hash = mix(hash, static_cast<uint64_t>(thread.polls + 1) << 32 |
                         static_cast<uint64_t>(thread.sleeps + 1) << 16 |
                         static_cast<uint64_t>(thread.patience) << 8 | thread.patient);
    add(thread.view);
  }
  for (size_t c = 0; c < cells_.size(); ++c) {
    const Cell& cell = cells_[c];
    for (size_t e = past.seen[c]; e < cell.entries.size(); ++e) {
      hash = mix(hash, cell.entries[e].value + 1);
      add(cell.entries[e].view);
    }
    for (int r = 0; r < count_; ++r) {
      hash = mix(hash, cell.reads[r] > past.reads[r] ? cell.reads[r] - past.reads[r] : 0);
    }
    add(cell.futex);
  }
  add(consistent_);
  return hash;
}

void World::fail(const std::string& fault) {
  if (fault_.empty()) fault_ = fault;
}

void World::check(bool holds, const std::string& fault) {
  if (holds) return;
  fail("thread " + std::to_string(running_) + ": " + fault);
  throw Stop{};
}

void World::note(const char* what, int cell, uint64_t value) {
  me().history = mix(mix(me().history, value), static_cast<uint64_t>(cell) + 1);
  if (!tell_) return;
  steps_.push_back("thread " + std::to_string(running_) + ": " + what + " " +
                   std::to_string(value) + ", cell " + std::to_string(cell));
}

int World::cell(uint64_t value) {
  cells_.emplace_back();
  cells_.back().entries.push_back({value, {}});
  return static_cast<int>(cells_.size()) - 1;
}

int World::cell(const void* word, uint64_t value) {
  words_.emplace_back(word, cell(value));
  return words_.back().second;
}

int World::at(const void* word) const {
  for (const auto& [place, cell] : words_) {
    if (place == word) return cell;
  }
  return -1;
}

// The entry that a load gets.
int World::visible(int cell, std::memory_order order) {
  View& view = me().view;
  if (order == std::memory_order_seq_cst) {
    view.seen[cell] = std::max(view.seen[cell], consistent_.seen[cell]);
  }
  const int last = static_cast<int>(cells_[cell].entries.size()) - 1;
  return last - choose(last - view.seen[cell] + 1);
}

void World::learn(int cell, int entry, std::memory_order order) {
  View& view = me().view;
  view.seen[cell] = static_cast<uint8_t>(entry);
  if (acquires(order)) view.join(cells_[cell].entries[entry].view);
  if (order == std::memory_order_seq_cst) {
    consistent_.seen[cell] = std::max(consistent_.seen[cell], view.seen[cell]);
  }
}

// `earlier`: what the entry that is replaced hands on.
void World::append(int cell, uint64_t value, std::memory_order order, const View* earlier) {
  auto& entries = cells_[cell].entries;
  check(entries.size() < 255, "too many stores to one cell");
  View& view = me().view;
  view.seen[cell] = static_cast<uint8_t>(entries.size());
  View said;
  if (releases(order)) said = view;
  if (earlier) said.join(*earlier);
  said.seen[cell] = view.seen[cell];
  entries.push_back({value, said});
  if (order == std::memory_order_seq_cst) consistent_.seen[cell] = view.seen[cell];
}

uint64_t World::load(int cell, std::memory_order order) {
  step(cell, false);
  order = weakened(order);
  Thread& thread = me();
  thread.before = thread.history;
  thread.loaded = cell;
  const int entry = visible(cell, order);
  learn(cell, entry, order);
  const uint64_t value = cells_[cell].entries[entry].value;
  note("loads", cell, value);
  return value;
}

void World::store(int cell, uint64_t value, std::memory_order order) {
  step(cell, true);
  order = weakened(order);
  append(cell, value, order, nullptr);
  note("stores", cell, value);
}

uint64_t World::update(int cell, const std::function<uint64_t(uint64_t)>& f,
                       std::memory_order order) {
  step(cell, true);
  order = weakened(order);
  // Nothing comes between what is read and what is stored.
  const int last = static_cast<int>(cells_[cell].entries.size()) - 1;
  const Entry old = cells_[cell].entries[last];
  learn(cell, last, order);
  append(cell, f(old.value), order, &old.view);
  note("updates", cell, old.value);
  return old.value;
}

bool World::exchange_if(int cell, uint64_t* expected, uint64_t desired, std::memory_order order) {
  step(cell, true);
  order = weakened(order);
  // An earlier entry makes it fail, unless it is what is expected: then it would only be tried
  // again.
  const auto& entries = cells_[cell].entries;
  const int last = static_cast<int>(entries.size()) - 1;
  std::vector<int> found{last};
  for (int e = me().view.seen[cell]; e < last; ++e) {
    if (entries[e].value != *expected) found.push_back(e);
  }
  const int entry = found[choose(static_cast<int>(found.size()))];
  const Entry old = entries[entry];
  learn(cell, entry, order);
  note("compares", cell, old.value);
  const bool same = old.value == *expected;
  if (same) append(cell, desired, order, &old.view);
  *expected = old.value;
  return same;
}

uint64_t World::read(int cell) {
  View& view = me().view;
  Cell& plain = cells_[cell];
  check(view.seen[cell] + 1u == plain.entries.size(),
        "reads cell " + std::to_string(cell) + " beside another's write");
  plain.reads[running_] = ++view.reads[running_];
  note("reads", cell, plain.entries.back().value);
  return plain.entries.back().value;
}

void World::write(int cell, uint64_t value) {
  const View& view = me().view;
  const Cell& plain = cells_[cell];
  bool alone = view.seen[cell] + 1u == plain.entries.size();
  for (int t = 0; t < count_; ++t) alone &= view.reads[t] >= plain.reads[t];
  check(alone, "writes cell " + std::to_string(cell) + " beside another's access");
  append(cell, value, std::memory_order_relaxed, nullptr);
  note("writes", cell, value);
}

bool World::poll_again(bool patient) {
  Thread& thread = me();
  // It is where it was before that load, but for what it has seen.
  thread.history = thread.before;
  thread.polls = thread.loaded;
  thread.patient = patient || thread.patience == 0;
  yield();
  const bool news = has_news(thread) && (thread.patient || choose(2) == 0);
  if (news) ++thread.view.seen[thread.polls];
  thread.polls = -1;
  thread.chosen = news;
  if (news) return true;
  --thread.patience;
  note("loses patience at", thread.loaded, 0);
  return false;
}

bool World::sleep(int cell, int shift, uint32_t seen) {
  step(cell, false);
  Thread& thread = me();
  // The kernel looks at the word after a barrier, and under a lock that a waker takes later.
  thread.view.join(cells_[cell].futex);
  const int entry = visible(cell, std::memory_order_seq_cst);
  learn(cell, entry, std::memory_order_relaxed);
  const uint64_t value = cells_[cell].entries[entry].value;
  note("would sleep on", cell, value);
  if (static_cast<uint32_t>(value >> shift) != seen) return true;
  thread.sleeps = cell;
  yield();
  const bool woken = thread.sleeps < 0;
  thread.sleeps = -1;
  thread.patience -= !woken;
  note(woken ? "is woken at" : "loses patience at", cell, woken);
  return woken;
}

void World::wake(int cell) {
  step(cell, true);
  cells_[cell].futex.join(me().view);
  note("wakes those on", cell, 0);
  for (int t = 0; t < count_; ++t) {
    if (threads_[t].sleeps == cell) threads_[t].sleeps = -1;
  }
}

void expect(const char* name, const Result& result, const std::string& fault) {
  const bool right =
      fault.empty() ? result.fault.empty() : result.fault.find(fault) != std::string::npos;
  std::printf("%-60s %8lld states%s\n", name, static_cast<long long>(result.states),
              result.fault.empty() ? "" : ", caught");
  std::fflush(stdout);
  if (right) return;
  std::fprintf(stderr, "%s: %s\n", name,
               result.fault.empty() ? "not caught" : result.fault.c_str());
  std::exit(1);
}

}  // namespace jaxcc::model
