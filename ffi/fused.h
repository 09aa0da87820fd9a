// The XLA FFI target `jaxcc_fused`: one kernel, run by a group of ranks on the buffers of all of
// them.
//
// Operands: order, place, scalars..., tensor 0's operands..., tensor 1's operands..., and so on.
// Results: order, tensor 0's results..., and so on. The order buffer is copied through; it makes
// XLA run a program's collectives in one order on all ranks. The place, an i32, is where the
// program has this rank: its group * ranks + its rank there. Attributes:
//   kernel    string   key of the kernel
//   op        string   name for messages
//   devices   i64[]    process * 2^20 + ordinal of the device there: groups of `ranks`, one after
//                      another; the program may order those of a group otherwise
//   outbox    i64      of groups with ranks in several processes: which channel they have, by the
//                      size of its outboxes
//   ranks     i64      ranks in a group
//   team      i64      ranks among which a tensor is divided; a group is teams, one after another
//   targets   i64[]    for each team the one that it sends to or -1; empty if none sends
//   scalars   i64      operands that tensors share
//   kinds     i64[]    of each kind of tensor: operands, results, how many of these are totals
//                      (numbers that all elements make), elements that the kernel needs together
//   reach     i64[]    of each kind of tensor, whose each operand and each result is: see
//                      protocol/staging.h
//   geometry  i64[]    of each tensor: outer, extent, block, kind, first scalar
#pragma once

#include "xla/ffi/api/ffi.h"

namespace jaxcc {

// The type of what instantiate_fused leaves for execute_fused.
XLA_FFI_TypeId* fused_type_id();
const XLA_FFI_TypeInfo* fused_type_info();

XLA_FFI_Error* instantiate_fused(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* execute_fused(XLA_FFI_CallFrame* frame);

}  // namespace jaxcc
