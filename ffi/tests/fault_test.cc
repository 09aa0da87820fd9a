// Random collectives of 2 to 4 processes, of which one is killed, stopped, late or leaves at a
// random moment, for a given time: fault_test [SECONDS [SEED]].
//
// Every survivor must get its error soon, with the rank's name and all results before it right;
// must be without the memory then, and go on by itself. Then the program runs again, without a
// fault.

#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>

#include "problems.h"
#include "processes.h"
#include "steps.h"
#include "worlds.h"

namespace jaxcc::testing {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMostRanks = 4;
constexpr int64_t kSteps = 60;
constexpr auto kLong = std::chrono::seconds(60);
constexpr auto kShort = std::chrono::milliseconds(300);  // the limit where a rank stays stopped
constexpr auto kSoon = std::chrono::seconds(2);          // a death is noticed in a tenth of one
constexpr int kOwnCode = 40;                             // plus the rank

enum Fault { kNoFault, kKilled, kStopped, kPaused, kLate, kLeaves, kFaults };
const char* const kFaultNames[] = {"none", "killed", "stopped", "paused", "late", "leaves"};

// What happens in one run of a program.
struct Plan {
  int ranks;
  Fault fault;
  int victim;
  int64_t outbox;
  uint64_t seed;                    // of the program
  std::chrono::microseconds after;  // the ranks have begun, the fault comes
  std::chrono::microseconds lasts;  // if it is a pause, or a rank that is late
  int64_t step;                     // in which the victim is late, or before which it leaves

  bool is_fatal() const { return fault == kKilled || fault == kStopped || fault == kLeaves; }
  std::chrono::nanoseconds timeout() const {
    return fault == kStopped ? std::chrono::nanoseconds(kShort) : std::chrono::nanoseconds(kLong);
  }
  Members members() const {
    Members all{{}, outbox};
    for (int64_t r = 0; r < ranks; ++r) all.devices.push_back(r << kProcessShift);
    return all;
  }
};

Plan random_plan(Random& random) {
  const int ranks = static_cast<int>(random.integer(2, kMostRanks));
  Plan plan;
  plan.ranks = ranks;
  plan.fault = static_cast<Fault>(random.integer(kKilled, kFaults - 1));
  plan.victim = static_cast<int>(random.integer(0, ranks - 1));
  plan.outbox = random.integer(0, 1) ? 128 << 10 : 1 << 20;
  plan.seed = random.integer(0, INT64_MAX);
  plan.after = std::chrono::microseconds(random.integer(0, 40'000));
  plan.lasts = std::chrono::microseconds(random.integer(0, 150'000));
  plan.step = random.integer(0, kSteps - 1);
  return plan;
}

// What the processes of a run tell each other.
struct Board {
  std::atomic<int> begun;
  std::atomic<bool> has_address;
  char address[128];
  struct Rank {
    std::atomic<int64_t> completed;  // steps
    std::atomic<int64_t> told;       // when it was told of the fault
    char message[2048];
  } ranks[kMostRanks];
};

int64_t now() { return Clock::now().time_since_epoch().count(); }

// A step of a program: a collective, or an optimizer's.
struct Mixed {
  Step collective;
  std::vector<Shape> shapes;  // of an optimizer's parameters
  std::unique_ptr<Problem> before;

  Mixed(Random& random, int ranks) {
    const int64_t kind = random.integer(0, 99);
    if (kind < 15) {
      shapes = random_shapes(random, 1);
      if (kind == 0) shapes.push_back({4, random.integer(1, 12'000)});
      before = std::make_unique<Problem>(make_problem(shapes, ranks, random));
      return;
    }
    const int64_t most = kind < 75 ? 64 : kind < 95 ? 16'384 : 262'144;
    collective = random_step(random, ranks, random.integer(1, most) / (kind < 75 ? 1 : ranks) + 1);
  }

  Status run(Port& port, int rank, Random& random) const {
    if (before) {
      Problem after = copy(*before, shapes);
      const StagedKernel staged = plan_for<Update>(*before->signature, port.outbox_bytes());
      const Status status = staged.run(port, -1, after.views[rank], random.integer(0, 1));
      if (status.failure == Failure::kNone) check_rank(*before, after, rank);
      return status;
    }
    const Buffers buffers(collective, rank);
    const Status status = run_by_outboxes(port, collective, buffers.both());
    if (status.failure == Failure::kNone) buffers.check(random);
    return status;
  }
};

// Programs of one seed are alike in all processes. They repeat themselves after so many steps.
std::vector<Mixed> program(const Plan& plan) {
  Random random(plan.seed);
  std::vector<Mixed> steps;
  for (int64_t s = 0; s < kSteps; ++s) steps.emplace_back(random, plan.ranks);
  return steps;
}

std::unique_ptr<Channel> join(const Plan& plan, Board& board, int rank) {
  std::string problem;
  std::unique_ptr<Channel> channel;
  if (rank == 0) {
    channel = Channel::create(plan.members(), rank, plan.timeout(), &problem);
    CHECK(channel);
    CHECK(channel->address().size() < sizeof board.address);
    std::strcpy(board.address, channel->address().c_str());
    board.has_address = true;
  } else {
    while (!board.has_address) sched_yield();
    channel = Channel::attach(plan.members(), rank, plan.timeout(), board.address, &problem);
    CHECK(channel);
  }
  // A fault comes when all are there; who is not is Python's to notice.
  ++board.begun;
  while (board.begun < plan.ranks) sched_yield();
  return channel;
}

// A rank's process; the exit code is its own if the fault has ended the group.
int rank_main(const Plan& plan, Board& board, int rank) {
  const auto steps = program(plan);
  const auto channel = join(plan, board, rank);
  Port& port = channel->port(rank);
  Board::Rank& own = board.ranks[rank];
  Random random(plan.seed + rank + 1);
  for (int64_t s = 0; plan.is_fatal() || s < kSteps; ++s) {
    if (rank == plan.victim && s == plan.step) {
      if (plan.fault == kLate) std::this_thread::sleep_for(plan.lasts);
      if (plan.fault == kLeaves) {
        channel->leave();
        return kOwnCode + rank;
      }
    }
    if (random.integer(0, 19) == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(random.integer(0, 300)));
    }
    const Status status = steps[s % kSteps].run(port, rank, random);
    if (status.failure == Failure::kNone) {
      own.completed = s + 1;
      continue;
    }
    std::strncpy(own.message, status.message.c_str(), sizeof own.message - 1);
    own.told = now();
    CHECK(plan.is_fatal());
    CHECK(!has_memory());
    CHECK(steps[0].run(port, rank, random).message == status.message);
    return kOwnCode + rank;
  }
  return 0;
}

// How the run ended for a rank that the fault has left alive.
void check_survivor(const Plan& plan, const Board& board, int rank, int64_t fault_at) {
  const Board::Rank& own = board.ranks[rank];
  const auto says = [&](const std::string& text) {
    return std::string(own.message).find(text) != std::string::npos;
  };
  const std::string victim = std::to_string(plan.victim);
  const std::string name = "rank " + victim + " (process " + victim + ", device 0";
  const bool stopped = plan.fault == kStopped;
  CHECK(says(stopped ? "[BACKEND_TIMEOUT]" : "[BACKEND_RANK_DIED] " + name));
  CHECK(says(name));
  CHECK(stopped || says(plan.fault == kLeaves ? "ended its program" : "died during"));
  CHECK(std::chrono::nanoseconds(own.told - fault_at) < kSoon + (stopped ? kShort : kShort * 0));
  // It completed what the victim had completed before the fault, and perhaps what that was in; a
  // rank that goes on after it was stopped may complete that alone.
  const int64_t more = own.completed - board.ranks[plan.victim].completed;
  CHECK((stopped && more == -1) || more == 0 || more == 1);
}

// Strikes a rank's process, and says when.
int64_t strike(const Plan& plan, const Board& board, pid_t victim) {
  std::this_thread::sleep_for(plan.after);
  if (plan.fault == kKilled) kill(victim, SIGKILL);
  if (plan.fault == kLeaves) CHECK(exit_code(victim) == kOwnCode + plan.victim);
  const int64_t at = now();
  if (plan.fault != kStopped && plan.fault != kPaused) return at;
  kill(victim, SIGSTOP);
  std::this_thread::sleep_for(plan.lasts);
  for (int rank = 0; plan.fault == kStopped && rank < plan.ranks; ++rank) {
    while (rank != plan.victim && !board.ranks[rank].told) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  kill(victim, SIGCONT);
  return at;
}

// One run; ends the program unless it ends as it must.
void run(const Plan& plan) {
  alarm(120);
  void* const shared =
      mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(shared != MAP_FAILED);
  Board& board = *new (shared) Board();
  const pid_t parent = getpid();
  std::vector<pid_t> pids;
  for (int rank = 0; rank < plan.ranks; ++rank) {
    pids.push_back(fork());
    if (pids.back()) continue;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    _exit(rank_main(plan, board, rank));
  }
  while (board.begun < plan.ranks) std::this_thread::yield();
  const int64_t fault_at = strike(plan, board, pids[plan.victim]);
  for (int rank = 0; rank < plan.ranks; ++rank) {
    if (rank == plan.victim && plan.fault == kLeaves) continue;
    const bool killed = rank == plan.victim && plan.fault == kKilled;
    CHECK(exit_code(pids[rank]) == (killed ? -SIGKILL : plan.is_fatal() ? kOwnCode + rank : 0));
  }
  for (int rank = 0; plan.is_fatal() && rank < plan.ranks; ++rank) {
    if (rank != plan.victim) check_survivor(plan, board, rank, fault_at);
  }
  munmap(shared, sizeof(Board));
}

}  // namespace
}  // namespace jaxcc::testing

int main(int argc, char** argv) {
  using namespace jaxcc::testing;
  const double seconds = argc > 1 ? std::atof(argv[1]) : 5;
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : std::random_device{}();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::fflush(stdout);
  Random random(seed);
  int64_t done[kFaults] = {};
  const auto start = Clock::now();
  do {
    Plan plan = random_plan(random);
    run(plan);
    ++done[plan.fault];
    plan.fault = kNoFault;
    run(plan);
    ++done[kNoFault];
  } while (Clock::now() - start < std::chrono::duration<double>(seconds));
  for (int fault = 0; fault < kFaults; ++fault) {
    std::printf("%s %lld\n", kFaultNames[fault], static_cast<long long>(done[fault]));
  }
  return 0;
}
