#include "move.h"

#include <memory>

#include "handler.h"
#include "kernels.h"
#include "pages.h"
#include "participant.h"
#include "staged.h"

namespace jaxcc {

namespace ffi = xla::ffi;

// One custom call of an executable; all ranks share it.
struct MoveCall {
  static ffi::TypeId id;

  const MoveSignature* signature;
  Seats seats;
  bool stream;     // whether to store past the cache
  bool exchanges;  // whether groups of this process do
};

ffi::TypeId MoveCall::id = XLA_FFI_UNKNOWN_TYPE_ID;

namespace {

ffi::ErrorOr<std::unique_ptr<MoveCall>> instantiate(std::string_view name,
                                                    ffi::Span<const int64_t> devices, int64_t ranks,
                                                    int64_t outbox, std::string_view combine,
                                                    ffi::Span<const int64_t> bytes,
                                                    ffi::Span<const int64_t> moves) {
  const std::string op(name);
  const std::string key(combine);
  const auto refuse = [&](const std::string& what) { return ffi::Unexpected(invalid(op, what)); };
  const Combine found = find_combine(key);
  if (!key.empty() && !found.run) return refuse("there is no reduction '" + key + "'");
  if (bytes.size() != 2) return refuse("it has one operand and one result");

  auto call = std::make_unique<MoveCall>();
  if (const std::string problem = call->seats.take(devices, ranks, outbox); !problem.empty()) {
    return refuse(problem);
  }
  auto signature = std::make_unique<MoveSignature>();
  signature->op = op;
  signature->text = op + "\n" + (key.empty() ? "" : key + ", ") + std::to_string(ranks) + " ranks,";
  signature->operand_bytes = bytes[0];
  signature->result_bytes = bytes[1];
  if (const std::string problem = describe(*signature, ranks, found, {moves.begin(), moves.size()});
      !problem.empty()) {
    return refuse(problem);
  }
  call->stream = ranks * (bytes[0] + bytes[1]) > cache_bytes();
  call->exchanges =
      call->seats.outbox_bytes() > 0 && Exchanger::pays(1, bytes[0] + bytes[1], /*in_place=*/false);
  call->signature = &shared(std::move(signature));
  return call;
}

ffi::Error execute(MoveCall* call, int32_t device, ffi::RunId run, ffi::RemainingArgs args,
                   ffi::RemainingRets rets) {
  const MoveSignature& signature = *call->signature;
  const int32_t ordinal = Seats::ordinal(device);
  const Seats::Seat* seat = call->seats.find(ordinal);
  if (!seat) return call->seats.stranger(signature.op, ordinal, run.run_id);
  if (args.size() != kPlace + 2 || rets.size() != 2) {
    return invalid(signature.op, "has not one operand and one result");
  }
  const auto place = place_of(args);
  if (!place) return place.error();
  const ffi::AnyBuffer x = *args.get<ffi::AnyBuffer>(kPlace + 1);
  const ffi::AnyBuffer y = **rets.get<ffi::AnyBuffer>(1);
  if (static_cast<int64_t>(x.size_bytes()) != signature.operand_bytes ||
      static_cast<int64_t>(y.size_bytes()) != signature.result_bytes) {
    return invalid(signature.op, "its buffers have other sizes than it was told");
  }
  if (x.untyped_data() == y.untyped_data()) {
    return invalid(signature.op, "its result may not take the operand's buffer");
  }
  pass_order(args, rets);
  if (y.size_bytes() >= kHugePageBytes) use_huge_pages(y.untyped_data(), y.size_bytes());
  void* const buffers[] = {x.untyped_data(), y.untyped_data()};
  if (seat->port) {
    return outcome(run_staged(*seat->port, *place, signature, buffers, call->stream));
  }
  const Call mine{&signature, run.run_id, buffers, call->stream, call, *place};
  if (call->exchanges) {
    Exchanger rank(*seat->group, seat->number, mine);
    return outcome(run_staged(rank, signature, buffers, call->stream));
  }
  Participant rank(*seat->group, seat->number, mine);
  move_all(rank, rank.view(), signature.moves);
  return outcome(rank.status());
}

}  // namespace

XLA_FFI_TypeId* move_type_id() { return &MoveCall::id; }

const XLA_FFI_TypeInfo* move_type_info() {
  static const XLA_FFI_TypeInfo info = ffi::MakeTypeInfo<MoveCall>();
  return &info;
}

XLA_FFI_Error* instantiate_move(XLA_FFI_CallFrame* frame) {
  static const auto handler = ffi::Ffi::BindInstantiate()
                                  .Attr<std::string_view>("op")
                                  .Attr<ffi::Span<const int64_t>>("devices")
                                  .Attr<int64_t>("ranks")
                                  .Attr<int64_t>("outbox")
                                  .Attr<std::string_view>("combine")
                                  .Attr<ffi::Span<const int64_t>>("bytes")
                                  .Attr<ffi::Span<const int64_t>>("moves")
                                  .To(guarded(instantiate));
  return handler->Call(frame);
}

XLA_FFI_Error* execute_move(XLA_FFI_CallFrame* frame) {
  static const auto handler = execution(execute);
  return handler->Call(frame);
}

}  // namespace jaxcc
