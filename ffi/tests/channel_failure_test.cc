// Channels whose ranks end, are late, differ or are strangers: everyone who waits is told, soon.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <functional>

#include "../staged.h"
#include "processes.h"
#include "testing.h"

namespace jaxcc::testing {
namespace {

constexpr int64_t kOutbox = 4096;
constexpr auto kTimeout = std::chrono::milliseconds(400);

// Rank r is device 0 of process r.
Members members(int ranks) {
  Members all{{}, kOutbox};
  for (int64_t r = 0; r < ranks; ++r) all.devices.push_back(r << kProcessShift);
  return all;
}

struct Sum {
  explicit Sum(int ranks, const std::string& name = "sum", int64_t size = 8)
      : signature(make_signature(name, {{1, size}}, ranks, 0, 1, 1)),
        operand(size, 1),
        result(size) {
    const Kernel kernel = find_kernel("all_reduce.sum.f32");
    CHECK(call.plan(*signature, kernel, {{kTeam, 4}, {kTeam, 4}}, kOutbox).empty());
  }

  Status run(Port& port, int64_t place = -1) {
    void* const buffers[] = {operand.data(), result.data()};
    return call.run(port, place, buffers, false);
  }

  std::unique_ptr<FusedSignature> signature;
  StagedKernel call;
  std::vector<float> operand, result;
};

bool says(const Status& status, const std::string& text) {
  return status.message.find(text) != std::string::npos;
}

std::unique_ptr<Channel> create(int ranks, std::chrono::nanoseconds timeout) {
  std::string problem;
  auto channel = Channel::create(members(ranks), 0, timeout, &problem);
  CHECK(channel && problem.empty());
  return channel;
}

// A process that is a rank of the channel, does body(sum, port), and ends.
using Body = std::function<void(Sum& sum, Channel& channel, Port& port)>;
pid_t other_rank(const Channel& whole, int rank, const Body& body) {
  const pid_t pid = fork();
  if (pid) return pid;
  std::string problem;
  const auto channel =
      Channel::attach(members(whole.ranks()), rank, whole.timeout(), whole.address(), &problem);
  CHECK(channel && problem.empty());
  Sum sum(whole.ranks());
  body(sum, *channel, channel->port(rank));
  _exit(0);
}

void sums(Sum& sum, Port& port, int count) {
  for (int i = 0; i < count; ++i) {
    sum.result.assign(sum.result.size(), -1);
    CHECK(sum.run(port).failure == Failure::kNone);
    for (float x : sum.result) CHECK(x == static_cast<float>(port.channel().ranks()));
  }
}

void wait_for_ever() {
  for (;;) pause();
}

void check_death() {
  const auto channel = create(2, std::chrono::seconds(60));
  const pid_t pid = other_rank(*channel, 1, [](Sum& sum, Channel&, Port& port) {
    sums(sum, port, 100);
    wait_for_ever();
  });
  Sum sum(2);
  sums(sum, channel->port(0), 100);
  CHECK(has_memory());
  std::thread killer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    kill(pid, SIGKILL);
  });
  const auto start = std::chrono::steady_clock::now();
  const Status status = sum.run(channel->port(0));
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(1));
  killer.join();
  CHECK(status.failure == Failure::kDied);
  CHECK(
      says(status, "[BACKEND_RANK_DIED] rank 1 (process 1, device 0, pid " + std::to_string(pid)));
  CHECK(says(status, "died during sum #101"));
  CHECK(says(status, "was last in sum of 1x8 #100"));
  CHECK(!has_memory());
  CHECK(sum.run(channel->port(0)).message == status.message);
  CHECK(channel->close({Failure::kTimeout, "later"}).message == status.message);
  waitpid(pid, nullptr, 0);
}

// A process that ends before it has joined is noticed, too, where it is known.
void check_death_before() {
  const auto channel = create(2, std::chrono::seconds(60));
  const pid_t pid = fork();
  if (pid == 0) wait_for_ever();
  channel->expect({0, pid});
  std::thread killer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    kill(pid, SIGKILL);
    CHECK(exit_code(pid) == -SIGKILL);
  });
  Sum sum(2);
  const Status status = sum.run(channel->port(0));
  killer.join();
  CHECK(says(status, "[BACKEND_RANK_DIED] rank 1 (process 1, device 0) died during sum #1"));
  CHECK(says(status, "it has not joined"));
  CHECK(!has_memory());
}

// A rank that sleeps while all have come gets its result, though others have met with the end of
// the channel before it looks.
void check_late_look() {
  const auto channel = create(3, std::chrono::seconds(60));
  const pid_t late = other_rank(*channel, 1, [](Sum& sum, Channel&, Port& port) {
    sums(sum, port, 1);
    const Status status = sum.run(port);
    CHECK(says(status, "[BACKEND_RANK_DIED] rank 2 (process 2"));
    CHECK(says(status, "died during sum #2"));
  });
  while (!channel->state(1).sleeping) std::this_thread::yield();
  kill(late, SIGSTOP);
  CHECK(waitpid(late, nullptr, WUNTRACED) == late);
  const pid_t dead = other_rank(*channel, 2, [](Sum& sum, Channel&, Port& port) {
    sums(sum, port, 1);
    raise(SIGKILL);
  });
  Sum sum(3);
  sums(sum, channel->port(0), 1);
  CHECK(sum.run(channel->port(0)).failure == Failure::kDied);
  kill(late, SIGCONT);
  CHECK(exit_code(late) == 0);
  CHECK(exit_code(dead) == -SIGKILL);
}

// A program that ends while others count on it is no crash.
void check_left() {
  const auto channel = create(2, std::chrono::seconds(60));
  const pid_t pid = other_rank(*channel, 1, [](Sum& sum, Channel& channel, Port& port) {
    sums(sum, port, 3);
    channel.leave();
  });
  Sum sum(2);
  sums(sum, channel->port(0), 3);
  const Status status = sum.run(channel->port(0));
  CHECK(status.failure == Failure::kDied);
  CHECK(
      says(status, "pid " + std::to_string(pid) + ") ended its program before the end of sum #4"));
  CHECK(says(status, "it was last in sum of 1x8 #3"));
  CHECK(exit_code(pid) == 0);
}

// Ranks of one process give the memory back when none is in a collective; the others' outlives it.
void check_memory() {
  std::string problem;
  const Members four{{0, 1, 2, int64_t{1} << kProcessShift}, kOutbox};
  const auto channel = Channel::create(four, 0, std::chrono::seconds(60), &problem);
  CHECK(channel);
  const Channel& whole = *channel;
  const pid_t pid = fork();
  if (pid == 0) {
    const auto own = Channel::attach(four, 1, std::chrono::seconds(60), whole.address(), &problem);
    CHECK(own);
    Sum sum(4);
    Status status;
    do status = sum.run(own->port(3));
    while (status.failure == Failure::kNone);
    CHECK(status.failure == Failure::kMismatch && status.message == "enough");
    _exit(0);
  }
  on_ranks(3, [&](int rank) {
    Sum sum(4);
    if (rank == 2) {
      sums(sum, channel->port(rank), 50);
      channel->close({Failure::kMismatch, "enough"});
    }
    Status status;
    do status = sum.run(channel->port(rank));
    while (status.failure == Failure::kNone);
    CHECK(status.message == "enough");
    CHECK(sum.run(channel->port(rank)).message == "enough");
  });
  CHECK(!has_memory());
  CHECK(exit_code(pid) == 0);
}

// A rank that leaves after the last collective has left its part of it.
void check_end() {
  for (int i = 0; i < 20; ++i) {
    const auto channel = create(2, std::chrono::seconds(60));
    const pid_t pid =
        other_rank(*channel, 1, [](Sum& sum, Channel&, Port& port) { sums(sum, port, 3); });
    Sum sum(2);
    sums(sum, channel->port(0), 2);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    sums(sum, channel->port(0), 1);
    CHECK(exit_code(pid) == 0);
  }
}

void check_timeout() {
  const auto channel = create(3, kTimeout);
  Sum sum(3);
  const auto start = std::chrono::steady_clock::now();
  const Status status = sum.run(channel->port(0));
  CHECK(std::chrono::steady_clock::now() - start >= kTimeout);
  CHECK(status.failure == Failure::kTimeout);
  CHECK(says(status, "[BACKEND_TIMEOUT] sum #1 of the group of devices 0:0, 1:0, 2:0"));
  CHECK(says(status,
             "waited 0.4 s (JAXCC_TIMEOUT_S) for rank 1 (process 1, device 0), which has not "
             "joined; rank 2"));
}

// Ranks of one process, so that threads may be both.
void check_mismatch() {
  std::string problem;
  const Members pair{{0, 1}, kOutbox};
  const auto channel = Channel::create(pair, 0, std::chrono::seconds(60), &problem);
  CHECK(channel);
  on_ranks(2, [&](int rank) {
    Sum sum(2), other(2, "other", 9);
    for (int i = 0; i < 50; ++i) {
      const Status status = (rank && i % 3 == 2 ? other : sum).run(channel->port(rank));
      CHECK(status.failure == (i % 3 == 2 ? Failure::kMismatch : Failure::kNone));
      if (i % 3 < 2) continue;
      CHECK(says(status, "rank 0 to sum of 1x8"));
      CHECK(says(status, "rank 1 to other of 1x9"));
    }
  });
}

// Devices that the program has in other groups, or twice as one rank.
void check_other_groups() {
  std::string problem;
  const auto channel = Channel::create({{4, 5, 6}, kOutbox}, 0, std::chrono::seconds(60), &problem);
  CHECK(channel);
  for (const std::vector<int64_t>& places : {std::vector<int64_t>{0, 1, 5}, {2, 3, 4}, {0, 1, 1}}) {
    on_ranks(3, [&](int seat) {
      Sum sum(3);
      const Status status = sum.run(channel->port(seat), places[seat]);
      CHECK(status.failure == Failure::kMismatch);
      CHECK(says(status, "[BACKEND_MESH] sum was made for the group of devices 0:4, 0:5, 0:6"));
      CHECK(says(status, "process 0's device 6 is rank " + std::to_string(places[2] % 3) +
                             " of group " + std::to_string(places[2] / 3)));
      CHECK(sum.run(channel->port(seat), 3 + (seat + 1) % 3).failure == Failure::kNone);
    });
  }
}

void check_strangers() {
  std::string problem;
  const auto channel = create(2, kTimeout);
  const std::string address = channel->address();
  const auto refused = [&](const std::string& path, const std::string& token) {
    problem = "";
    CHECK(!Channel::attach(members(2), 1, kTimeout, path + token, &problem));
    return problem;
  };
  const std::string token = address.substr(address.find(' '));
  CHECK(refused(address.substr(0, address.find(' ')), token + "1").find("not the memory") !=
        std::string::npos);
  CHECK(refused("/proc/self/fd/9999", token).find("opening") == 0);
  const int file = memfd_create("other", MFD_ALLOW_SEALING);
  const std::string path = "/proc/self/fd/" + std::to_string(file);
  CHECK(refused(path, token).find("other users") != std::string::npos);
  CHECK(fchmod(file, 0600) == 0);
  CHECK(refused(path, token).find("0 bytes") != std::string::npos);
  struct stat shared;
  CHECK(stat(address.substr(0, address.find(' ')).c_str(), &shared) == 0);
  CHECK(shared.st_nlink == 0 && (shared.st_mode & 0777) == 0600);
  CHECK(ftruncate(file, shared.st_size) == 0);
  CHECK(refused(path, token).find("size is not fixed") != std::string::npos);
  close(file);
}

}  // namespace
}  // namespace jaxcc::testing

int main() {
  using namespace jaxcc::testing;
  check_death();
  check_death_before();
  check_late_look();
  check_left();
  check_memory();
  check_end();
  check_timeout();
  check_mismatch();
  check_other_groups();
  check_strangers();
  return 0;
}
