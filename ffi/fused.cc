#include "fused.h"

#include <memory>
#include <mutex>
#include <unordered_set>

#include "handler.h"
#include "kernels.h"
#include "pages.h"
#include "participant.h"
#include "staged.h"

namespace jaxcc {

namespace ffi = xla::ffi;

namespace {

struct Epilogue {
  Kernel kernel;
  void tile(const jaxcc_tile& tile, Participant::Lanes) const { kernel.tile(&tile); }
  void total(const jaxcc_parts& parts) const { kernel.total(&parts); }
};

}  // namespace

// One custom call of an executable; all ranks share it.
struct FusedCall {
  static ffi::TypeId id;

  const FusedSignature* signature;
  Epilogue epilogue;
  std::vector<std::vector<int32_t>> reach;  // of each kind's operands and results
  int64_t outbox;
  Seats seats;
  std::vector<Residents> residents;  // by device ordinal
  size_t operands;                   // without the order buffer, of all tensors and scalars
  size_t results;

  // XLA decides them when it compiles, but a handler sees them only when it runs.
  std::once_flag seen;
  std::string problem;
  std::vector<Span> watched;  // sizes of the operands, then of the results; empty if all are small
  std::vector<size_t> fresh;  // large results that are no operand's buffer
  bool stream = false;
  StagedKernel staged;     // for seats at ports, or
  bool exchanges = false;  // in groups

  void look(const ffi::RemainingArgs& args, const ffi::RemainingRets& rets);
  bool rather_exchanges(const std::vector<void*>& buffers) const;
  std::string stage(const ffi::RemainingArgs& args, const ffi::RemainingRets& rets, int64_t outbox);

  // Calls f(tensor, b, reach) for each tensor's operands and results, where b is the place in the
  // list that abi.h gives.
  template <class F>
  void each_buffer(const F& f) const {
    for (const Tensor& tensor : signature->tensors) {
      const Kind& kind = signature->kinds[tensor.kind];
      for (int32_t k = 0; k < kind.operands + kind.results; ++k) {
        const bool read = k < kind.operands;
        f(tensor, read ? tensor.first_operand + k : tensor.first_result + k - kind.operands,
          reach[tensor.kind][k]);
      }
    }
  }
};

ffi::TypeId FusedCall::id = XLA_FFI_UNKNOWN_TYPE_ID;

// Checks the results' sizes, and decides which need huge pages and whether to store past the cache.
void FusedCall::look(const ffi::RemainingArgs& args, const ffi::RemainingRets& rets) {
  std::unordered_set<const void*> read;
  std::vector<void*> buffers;
  size_t bytes = 0;
  for (size_t i = kPlace + 1; i < args.size(); ++i) {
    const ffi::AnyBuffer buffer = *args.get<ffi::AnyBuffer>(i);
    read.insert(buffer.untyped_data());
    buffers.push_back(buffer.untyped_data());
    bytes += buffer.size_bytes();
    watched.push_back({nullptr, buffer.size_bytes()});
  }
  const Geometry& geometry = signature->geometry;
  size_t t = 0;
  for (size_t i = 1; i < rets.size(); ++i) {
    const ffi::AnyBuffer buffer = **rets.get<ffi::AnyBuffer>(i);
    const int64_t index = static_cast<int64_t>(operands + i - 1);
    const auto last = [&](const Tensor& tensor) {
      return tensor.first_result + signature->kinds[tensor.kind].results - 1;
    };
    while (index > last(signature->tensors[t])) ++t;
    const Tensor& tensor = signature->tensors[t];
    const int64_t size = static_cast<int64_t>(buffer.element_count());
    const bool total = signature->kinds[tensor.kind].totals > 0 && size == 1;
    if (!total && size != tensor.outer * tensor.extent && size != tensor.outer * tensor.block) {
      problem = "result " + std::to_string(i - 1) + " has " + std::to_string(size) +
                " elements, neither the whole tensor's " +
                std::to_string(tensor.outer * tensor.extent) + " nor a slice's " +
                std::to_string(tensor.outer * tensor.block);
    }
    watched.push_back({nullptr, buffer.size_bytes()});
    buffers.push_back(buffer.untyped_data());
    if (read.count(buffer.untyped_data())) continue;
    bytes += buffer.size_bytes();
    if (buffer.size_bytes() >= kHugePageBytes) fresh.push_back(i);
  }
  if (seats.has_ports()) {
    problem = stage(args, rets, outbox);
  } else if (seats.outbox_bytes() > 0 && rather_exchanges(buffers)) {
    exchanges = stage(args, rets, seats.outbox_bytes()).empty();
  }
  if (bytes < kHugePageBytes) watched.clear();
  stream = static_cast<int64_t>(bytes) * geometry.teams * geometry.ranks > cache_bytes();
}

bool FusedCall::rather_exchanges(const std::vector<void*>& buffers) const {
  const std::unordered_set<void*> written(buffers.begin() + operands, buffers.end());
  int64_t tensors = 0, bytes = 0;
  bool in_place = true;
  each_buffer([&](const Tensor&, int32_t b, int32_t its) {
    if (its == kOwner || its == kTotal) return;
    ++tensors;
    bytes += static_cast<int64_t>(watched[b].bytes);
    if (b < static_cast<int32_t>(operands)) in_place &= written.count(buffers[b]) > 0;
  });
  return Exchanger::pays(tensors, bytes, in_place);
}

// Says how buffers go through outboxes of so many bytes. Returns why they cannot, or an empty
// string.
std::string FusedCall::stage(const ffi::RemainingArgs& args, const ffi::RemainingRets& rets,
                             int64_t outbox) {
  std::vector<Buffer> buffers;
  std::vector<int64_t> counts;  // elements
  const auto add = [&](const ffi::AnyBuffer& buffer) {
    buffers.push_back({kOwner, static_cast<int32_t>(ffi::ByteWidth(buffer.element_type()))});
    counts.push_back(static_cast<int64_t>(buffer.element_count()));
  };
  for (size_t i = kPlace + 1; i < args.size(); ++i) add(*args.get<ffi::AnyBuffer>(i));
  for (size_t i = 1; i < rets.size(); ++i) add(**rets.get<ffi::AnyBuffer>(i));
  std::string misfit;
  each_buffer([&](const Tensor& tensor, int32_t b, int32_t its) {
    buffers[b].reach = its;
    const bool whole = its == kTeam || its == kReceivers;
    const bool fits = whole              ? counts[b] == tensor.outer * tensor.extent
                      : its == kReceiver ? counts[b] == tensor.outer * tensor.block
                      : its == kTotal    ? counts[b] == 1
                                         : true;
    if (fits || !misfit.empty()) return;
    misfit = "buffer " + std::to_string(b) + " has " + std::to_string(counts[b]) +
             " elements, which does not fit what it is for";
  });
  if (!misfit.empty()) return misfit;
  return staged.plan(*signature, epilogue.kernel, std::move(buffers), outbox);
}

namespace {

ffi::ErrorOr<std::unique_ptr<FusedCall>> instantiate(
    std::string_view kernel, std::string_view name, ffi::Span<const int64_t> devices, int64_t ranks,
    int64_t outbox, int64_t team, ffi::Span<const int64_t> targets, int64_t scalars,
    ffi::Span<const int64_t> kinds, ffi::Span<const int64_t> reach,
    ffi::Span<const int64_t> shape) {
  const std::string op(name);
  const std::string key(kernel);
  const auto refuse = [&](const std::string& what) { return ffi::Unexpected(invalid(op, what)); };
  auto call = std::make_unique<FusedCall>();
  if (const std::string problem = call->seats.take(devices, ranks, outbox); !problem.empty()) {
    return refuse(problem);
  }
  call->residents.resize(call->seats.size());
  const Kernel found = find_kernel(key);
  if (!found.tile) {
    return ffi::Unexpected(ffi::Error(ffi::ErrorCode::kNotFound,
                                      "[BACKEND_KERNEL] " + op + ": kernel '" + key +
                                          "' is not loaded in this process; trace and compile the "
                                          "program here instead of loading an old executable"));
  }
  auto signature = std::make_unique<FusedSignature>();
  signature->op = op;
  signature->text = op + "\nkernel " + key + ", " + std::to_string(scalars) + " scalars, " +
                    std::to_string(ranks) + " ranks in teams of " + std::to_string(team) + ", of";
  const std::string problem =
      describe(*signature, ranks, team, {targets.begin(), targets.size()}, scalars,
               {kinds.begin(), kinds.size()}, {shape.begin(), shape.size()});
  if (!problem.empty()) return refuse(problem);
  if (signature->geometry.totals && !found.total) {
    return refuse("kernel '" + key + "' has no totals");
  }

  call->operands = static_cast<size_t>(scalars);
  call->results = 0;
  for (const Tensor& tensor : signature->tensors) {
    call->operands += signature->kinds[tensor.kind].operands;
    call->results += signature->kinds[tensor.kind].results;
  }
  size_t at = 0;
  for (const Kind& kind : signature->kinds) {
    const size_t count = static_cast<size_t>(kind.operands) + kind.results;
    if (reach.size() - at < count) return refuse("it is not said whose each buffer is");
    call->reach.emplace_back(reach.begin() + at, reach.begin() + at + count);
    at += count;
  }
  call->outbox = outbox;
  call->signature = &shared(std::move(signature));
  call->epilogue = {found};
  return call;
}

ffi::Error execute(FusedCall* call, int32_t device, ffi::RunId run, ffi::RemainingArgs args,
                   ffi::RemainingRets rets) {
  const std::string& op = call->signature->op;
  const int32_t ordinal = Seats::ordinal(device);
  const Seats::Seat* seat = call->seats.find(ordinal);
  if (!seat) return call->seats.stranger(op, ordinal, run.run_id);
  if (args.size() != call->operands + kPlace + 1 || rets.size() != call->results + 1) {
    return invalid(op, "has " + std::to_string(args.size()) + " operands and " +
                           std::to_string(rets.size()) + " results, not " +
                           std::to_string(call->operands + kPlace + 1) + " and " +
                           std::to_string(call->results + 1));
  }
  const auto place = place_of(args);
  if (!place) return place.error();
  std::call_once(call->seen, [&] { call->look(args, rets); });
  if (!call->problem.empty()) return invalid(op, call->problem);

  pass_order(args, rets);
  for (size_t i : call->fresh) {
    const ffi::AnyBuffer buffer = **rets.get<ffi::AnyBuffer>(i);
    use_huge_pages(buffer.untyped_data(), buffer.size_bytes());
  }
  thread_local std::vector<void*> buffers;
  buffers.clear();
  for (size_t i = kPlace + 1; i < args.size(); ++i) {
    buffers.push_back(args.get<ffi::AnyBuffer>(i)->untyped_data());
  }
  for (size_t i = 1; i < rets.size(); ++i) {
    buffers.push_back((*rets.get<ffi::AnyBuffer>(i))->untyped_data());
  }

  thread_local std::vector<Span> spans;
  spans = call->watched;
  for (size_t i = 0; i < spans.size(); ++i) spans[i].data = buffers[i];
  call->residents[ordinal].seen(spans);
  if (seat->port) {
    return outcome(call->staged.run(*seat->port, *place, buffers.data(), call->stream));
  }
  const Call mine{call->signature, run.run_id, buffers.data(), call->stream, call, *place};
  if (call->exchanges) {
    Exchanger rank(*seat->group, seat->number, mine);
    return outcome(call->staged.run(rank, buffers.data(), call->stream));
  }
  Participant rank(*seat->group, seat->number, mine);
  two_shot(rank, call->epilogue, rank.view(), call->signature->geometry);
  return outcome(rank.status());
}

}  // namespace

XLA_FFI_TypeId* fused_type_id() { return &FusedCall::id; }

const XLA_FFI_TypeInfo* fused_type_info() {
  static const XLA_FFI_TypeInfo info = ffi::MakeTypeInfo<FusedCall>();
  return &info;
}

XLA_FFI_Error* instantiate_fused(XLA_FFI_CallFrame* frame) {
  static const auto handler = ffi::Ffi::BindInstantiate()
                                  .Attr<std::string_view>("kernel")
                                  .Attr<std::string_view>("op")
                                  .Attr<ffi::Span<const int64_t>>("devices")
                                  .Attr<int64_t>("ranks")
                                  .Attr<int64_t>("outbox")
                                  .Attr<int64_t>("team")
                                  .Attr<ffi::Span<const int64_t>>("targets")
                                  .Attr<int64_t>("scalars")
                                  .Attr<ffi::Span<const int64_t>>("kinds")
                                  .Attr<ffi::Span<const int64_t>>("reach")
                                  .Attr<ffi::Span<const int64_t>>("geometry")
                                  .To(guarded(instantiate));
  return handler->Call(frame);
}

XLA_FFI_Error* execute_fused(XLA_FFI_CallFrame* frame) {
  static const auto handler = execution(execute);
  return handler->Call(frame);
}

}  // namespace jaxcc
